"""Storing: what autograd saves in modules that are stored in FP8, as a pipeline would find it.

Says with doubles what ranks store: of each 128 elements of a row, or what is left of it, the
largest finite magnitude is taken to the top of the range by a power of two; all are rounded to
E4M3, and taken back. Where a module is recomputed besides, or is given such inputs by the one that
it is in, it runs again from what is rounded so; any other computes what it did, and is left as it
is. So is what checkpoints and hooks of the stage's own save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from weft.runtime.stage.storage.marks import LEAST_UNIT, TILE, TOP, Mark, is_rounded, marked
from weft.runtime.stage.swap import Slots

LARGEST = 240.0  # below 2 * TOP

Pack = Callable[[Tensor], Tensor]
ModuleForward = Callable[..., Any]


class Kept(NamedTuple):
    """A tensor in place of a saved one, and its version: torch looks for changes of its own."""

    tensor: Tensor
    version: int


class SavedInputs:
    """Rounds what is saved of the inputs of marked modules, in all stages."""

    def __init__(self, stages: Sequence[nn.Module]) -> None:
        self._places: list[int] = []  # memory of the inputs of those that run
        self._otherwise: Pack | None = None  # what is saved of all else
        found = [one for stage in stages for one in marked(stage)]
        self._is_rounding = any(Mark.FP8 in one.mark for one in found)
        for _, module, mark in found if self._is_rounding else ():
            plain = module.forward
            again = _again(module, plain) if Mark.AGAIN in mark else plain
            takes = self._rounding if Mark.FP8 in mark else self._within
            module.forward = partial(takes, plain, again)

    @contextmanager
    def otherwise(self, pack: Pack) -> Iterator[None]:
        """Where something else is saved in place of tensors that are no such inputs."""
        self._otherwise = pack
        try:
            with saved_tensors_hooks(pack, _itself):
                yield
        finally:
            self._otherwise = None

    def saving(self) -> AbstractContextManager[None]:
        """Where a stage runs: what its own hooks and checkpoints save is not rounded."""
        return saved_tensors_hooks(self._pack, _unpack) if self._is_rounding else nullcontext()

    def _rounding(
        self, forward: ModuleForward, again: ModuleForward, /, *args: Any, **kwargs: Any
    ) -> Any:
        """The forward of a module that is stored in FP8, and perhaps recomputed."""
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        given = [_place(value) for value in _tensors((args, kwargs))]
        self._places += given
        try:
            return again(*args, **kwargs)
        finally:
            del self._places[len(self._places) - len(given) :]

    def _within(
        self, forward: ModuleForward, again: ModuleForward, /, *args: Any, **kwargs: Any
    ) -> Any:
        """That of one that is recomputed alone; from what is rounded, where it is given that."""
        is_rounded_again = any(map(self._is_stored, _tensors((args, kwargs))))
        is_again = torch.is_grad_enabled() and is_rounded_again
        return (again if is_again else forward)(*args, **kwargs)

    def _is_stored(self, tensor: Tensor) -> bool:
        return _place(tensor) in self._places and is_rounded(tensor)

    def _pack(self, tensor: Tensor) -> Tensor | Kept:
        if self._is_stored(tensor):
            return rounded_in_tiles(tensor.detach())
        if self._otherwise is not None:
            return self._otherwise(tensor)
        return Kept(tensor, tensor._version)


def _unpack(saved: Tensor | Kept) -> Tensor:
    if isinstance(saved, Tensor):
        return saved
    if saved.tensor._version != saved.version:
        raise RuntimeError(
            f"one of the variables needed for gradient computation has been modified by an inplace"
            f" operation: a tensor of shape {list(saved.tensor.shape)} is at version"
            f" {saved.tensor._version}; expected version {saved.version}"
        )
    return saved.tensor


def rounded_in_tiles(tensor: Tensor) -> Tensor:
    """A tensor as it comes back from FP8, in the layout that torch gives a copy of it."""
    rows = tensor.reshape(-1, tensor.shape[-1]).double()
    found = torch.empty_like(rows)
    for first in range(0, rows.shape[1], TILE):
        tile = rows[:, first : first + TILE]
        is_finite = tile.isfinite()
        most = torch.where(is_finite, tile.abs(), 0.0).amax(1, keepdim=True)
        unit = torch.ldexp(torch.ones_like(most), torch.frexp(most)[1] - 1)
        unit = torch.where(most > 0, unit, 1.0).clamp(min=LEAST_UNIT)
        scaled = (tile / unit * TOP).clamp(-LARGEST, LARGEST)
        back = scaled.float().to(torch.float8_e4m3fn).double() / TOP * unit
        found[:, first : first + TILE] = torch.where(is_finite, back, torch.nan)
    return torch.empty_like(tensor).copy_(found.view(tensor.shape))


def _again(module: nn.Module, forward: ModuleForward) -> ModuleForward:
    """A forward that runs again from what is saved of its inputs, with the buffers that it had."""
    slots = Slots(module)

    def call(*args: Any, **kwargs: Any) -> Any:
        before = {name: buffer.clone() for name, buffer in module.named_buffers()}
        turns = iter([nullcontext()])

        def turn(*args: Any, **kwargs: Any) -> Any:
            held: AbstractContextManager[None] = next(turns, slots.holding(before))
            with held:
                return forward(*args, **kwargs)

        return checkpoint(turn, *args, use_reentrant=False, **kwargs)

    return call


def _tensors(value: Any) -> list[Tensor]:
    return [one for one in _flat(value) if isinstance(one, Tensor)]


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _flat(value: Any) -> Iterator[object]:
    match value:
        case dict():
            for one in value.values():
                yield from _flat(one)
        case list() | tuple():
            for one in value:
                yield from _flat(one)
        case _:
            yield value


def _itself(saved: Tensor) -> Tensor:
    return saved
