"""Loading: what a process holds of a model gets the values that a checkpoint has for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.runtime.initial.blueprint import joined, saved_tensors
from weft.runtime.initial.checkpoint import Checkpoint
from weft.runtime.stage.calling import names_of
from weft.runtime.weights.ties import End

LISTED = 10  # names in an error


def found_in(
    checkpoint: Checkpoint, saved: Mapping[End, Sequence[str]], held: Collection[int]
) -> dict[End, str]:
    """The name in a checkpoint of each tensor that a process holds; a tied one has any of its."""
    there = set(checkpoint.names)
    mine = [end for end in saved if end.stage in held]
    found = {end: [name for name in saved[end] if name in there] for end in mine}
    missing = [*dict.fromkeys(saved[end][0] for end in mine if not found[end])]
    if missing:
        raise _refusal(checkpoint, "has no", missing, "give the checkpoint of just this model")
    return {end: names[0] for end, names in found.items()}


def refuse_unexpected(
    checkpoint: Checkpoint, saved: Mapping[End, Sequence[str]], unsaved: Collection[str]
) -> None:
    """Refuse names that no stage of the whole model has."""
    known = {name for names in saved.values() for name in names}
    strange = [name for name in checkpoint.names if name not in known and name not in unsaved]
    if strange:
        why = f"which the model does not have: its names are like {min(known, default='')!r}"
        raise _refusal(checkpoint, "has", strange, f"{why}; rename them, or leave them out")


def refuse_others(
    checkpoint: Checkpoint, names: Mapping[End, str], stages: Sequence[nn.Module]
) -> None:
    """Refuse tensors that do not fit the weights of these stages."""
    pairs = [(name, checkpoint.outline(name), one) for name, one in _places(names, stages)]
    shapes = [
        f"{name} {[*found.shape]} for {[*tensor.shape]}"
        for name, found, tensor in pairs
        if found.shape != tensor.shape
    ]
    if shapes:
        raise _refusal(checkpoint, "has other shapes than the model:", shapes, "see its config")
    types = [
        f"{name} {found.dtype} for {tensor.dtype}"
        for name, found, tensor in pairs
        if not _is_rounded(found, tensor)
    ]
    if types:
        why = "these are no roundings of such weights; convert them"
        raise _refusal(checkpoint, "has other types than the model:", types, why)


def refuse_unlike(
    checkpoint: Checkpoint, names: Mapping[End, str], stages: Sequence[nn.Module]
) -> None:
    """Refuse a tied weight that has another value by its name in one of these stages."""
    there = set(checkpoint.names)
    for end, name in names.items():
        own = joined(names_of(stages[end.stage], end.stage), end.name)
        if own in there and own != name and not _is_equal(checkpoint, name, own):
            why = "they are one weight of the model; leave one of them out, or do not tie it"
            raise _refusal(checkpoint, "has different values for", [name, own], why)


def load(checkpoint: Checkpoint, names: Mapping[End, str], stages: Sequence[nn.Module]) -> None:
    """Copy tensors into the weights and buffers of stages, one by one, in the type of these."""
    with torch.no_grad():
        for name, tensor in _places(names, stages):
            tensor.copy_(checkpoint.tensor(name))


def _is_equal(checkpoint: Checkpoint, one: str, other: str) -> bool:
    value = checkpoint.tensor(one)
    return torch.equal(value, checkpoint.tensor(other).to(value))


def _is_rounded(found: Tensor, wanted: Tensor) -> bool:
    """Whether one may be the other in another precision: integers are weights only with a scale."""
    if wanted.is_floating_point():
        return found.is_floating_point()
    return wanted.is_complex() or not found.is_complex()


def _places(names: Mapping[End, str], stages: Sequence[nn.Module]) -> Iterable[tuple[str, Tensor]]:
    """Each tensor of the stages, once, and its name in the checkpoint."""
    states = {stage: saved_tensors(stages[stage]) for stage in {end.stage for end in names}}
    seen = set[int]()
    for end, name in names.items():
        tensor = states[end.stage][end.name]
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


def _refusal(checkpoint: Checkpoint, what: str, names: Sequence[str], why: str) -> InputError:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return InputError(f"{checkpoint.where} {what} {', '.join(names[:LISTED])}{more}; {why}")
