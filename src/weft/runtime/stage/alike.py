"""Draws of stages that several ranks compute together: equal on equal values, others on shards.

    x  the same on all ranks    dropout(x)  has to drop the same everywhere
    h  a shard on each rank     dropout(h)  has to drop by numbers of each rank's own

All that is drawn is keyed alike on all ranks of a dimension, except in modules that are marked as
working on shards. The first forwards are watched: whatever draws on values that differ is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.overrides import TorchFunctionMode

from weft.errors import InputError
from weft.runtime.device.shards import is_sharded
from weft.runtime.stage.keyed import SHARD
from weft.runtime.stage.randomness import Draw
from weft.runtime.stage.values import fingerprint, learns


def draw_apart(module: nn.Module, mesh: DeviceMesh) -> None:
    """Let a module draw other numbers on each rank of a mesh, as what it works on is a shard."""
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise InputError("this rank is not in the mesh over which a module shall draw apart")
    place = 0
    for size, where in zip(mesh.shape, coordinate, strict=True):
        place = place * size + where
    for one in module.modules():
        setattr(one, SHARD, 1 + place)


class DrawnAlike(TorchFunctionMode):
    """Refuses what a stage draws on values that are not the same on all ranks of some groups."""

    def __init__(
        self,
        stage: int,
        draw: Draw,
        groups: Sequence[dist.ProcessGroup],
        device: torch.device,
    ) -> None:
        super().__init__()
        self._stage, self._draw, self._groups, self._device = stage, draw, groups, device

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        before = self._states()
        found = func(*args, **(kwargs or {}))
        if self._states() != before:
            self._check(func, [*_tensors((*args, *(kwargs or {}).values()))])
        return found

    def _states(self) -> list[bytes]:
        states = [source.get_state() for source in self._draw.generators]
        return [state.numpy().tobytes() for state in states]

    def _check(self, func: Any, tensors: Sequence[Tensor]) -> None:
        name = getattr(func, "__name__", str(func))
        if any(map(is_sharded, tensors)):
            raise InputError(
                f"stage {self._stage} draws ({name}) on a DTensor, for which torch has generators"
                f" of its own; give it the shard (use_local_output=True, or .to_local()), and let"
                f" the module that draws do so apart: weft.runtime.draw_apart(module, mesh)"
            )
        if self._draw.is_apart or self._are_alike(tensors):
            return
        raise InputError(
            f"stage {self._stage} draws ({name}) on values that differ among the ranks that compute"
            f" it together, and would draw the same on each of these shards; let the module that"
            f" draws do so apart: weft.runtime.draw_apart(module, mesh['tp'])"
        )

    def _are_alike(self, tensors: Sequence[Tensor]) -> bool:
        prints = [fingerprint(tensor) for tensor in tensors if learns(tensor)]
        both = [*prints, *(-one for one in prints)]
        most = torch.tensor(both, dtype=torch.float64, device="cpu").nan_to_num().to(self._device)
        least = most.clone()
        for group in self._groups:
            dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
        return torch.equal(most, least)


def _tensors(values: Sequence[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)
