"""Agreement: what the ranks of a run must have alike, compared before anything is computed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from torch import Tensor, nn

from weft.errors import Disagreement
from weft.runtime.batch import checksum
from weft.runtime.device.shards import distribution, local
from weft.runtime.experts.apart import apart_of
from weft.runtime.weights.ties import End

Modules: TypeAlias = Mapping[tuple[int, int], nn.Module]  # by pipe and stage


def refuse_different(shares: Sequence[bytes], what: str) -> None:
    """Refuse ranks that do not all say the same."""
    others = [rank for rank, share in enumerate(shares) if share != shares[0]]
    if others:
        raise Disagreement(f"{what} of ranks {others} differ from those of rank 0")


def refuse_different_weights(shares: Sequence[bytes]) -> None:
    """Refuse ranks that know the same weights by different sums."""
    first: dict[str, tuple[int, str]] = {}
    for rank, share in enumerate(shares):
        for name, found in json.loads(share).items():
            holder, wanted = first.setdefault(name, (rank, found))
            if found != wanted:
                raise Disagreement(
                    f"ranks {holder} and {rank} start {name} from different weights;"
                    f" seed all ranks alike"
                )


def structure(stages: Sequence[nn.Module]) -> str:
    """The names and shapes of all weights, and how they are distributed, in short."""
    named = [
        (index, name, tuple(weight.shape), str(weight.dtype), _distribution(weight))
        for index, stage in enumerate(stages)
        for name, weight in stage.named_parameters()
    ]
    return hashlib.sha256(repr(named).encode()).hexdigest()


def _distribution(weight: nn.Parameter) -> str:
    """How ranks hold a weight together, whichever part of it is here."""
    ranks = apart_of(weight)[1]
    return f"{distribution(weight)} {ranks} expert ranks" if ranks > 1 else distribution(weight)


def sums_of_copies(modules: Modules) -> dict[str, str]:
    """Of all weights and buffers of each stage that this process holds; of experts by rank."""
    sums: dict[str, str] = {}
    for (_, stage), module in modules.items():
        held: dict[str, list[Tensor]] = {f"stage {stage}": []}
        for value in module.state_dict(keep_vars=True).values():
            rank, ranks = apart_of(value) if isinstance(value, Tensor) else (0, 1)
            whose = f"stage {stage}" + (f", expert rank {rank}," if ranks > 1 else "")
            held.setdefault(whose, []).append(value)
        sums |= {whose: checksum([tuple(map(local, found))]) for whose, found in held.items()}
    return sums


def sums_of_ends(modules: Modules, ties: Sequence[Sequence[End]]) -> dict[str, str]:
    """Of each weight that several stages share, where this process holds one of them."""
    sums = {}
    for ends in ties:
        for weight in _held(modules, ends):
            sums[f"{ends[0].name} of stage {ends[0].stage}"] = checksum([(local(weight),)])
    return sums


def _held(modules: Modules, ends: Sequence[End]) -> Iterator[nn.Parameter]:
    """The ends of a shared weight that are here."""
    for (_, stage), module in modules.items():
        for end in ends:
            if end.stage == stage:
                yield module.get_parameter(end.name)
