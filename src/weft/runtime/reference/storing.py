"""Storing: what autograd saves in modules that are stored in FP8, as a pipeline would find it.

Says with doubles what ranks store: of each 128 elements of a row, or what is left of it, the
largest finite magnitude is taken to the top of the range by a power of two; all are rounded to
E4M3, and taken back. Where a module is recomputed besides, it runs again from what is rounded so; a
recomputed module alone computes what it did, and is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from weft.runtime.stage.storage.marks import LEAST_UNIT, TILE, TOP, Mark, is_rounded, marked
from weft.runtime.stage.swap import Slots

LARGEST = 240.0  # below 2 * TOP

Pack = Callable[[Tensor], Tensor]


class SavedInputs:
    """Rounds what is saved of the inputs of marked modules, in all stages."""

    def __init__(self, stages: Sequence[nn.Module]) -> None:
        self._places: list[int] = []  # memory of the inputs of those that run
        self._otherwise: Pack | None = None  # what is saved of all else
        for stage in stages:
            for _, module, mark in marked(stage):
                if Mark.FP8 in mark:
                    inner = _again(module, module.forward) if Mark.AGAIN in mark else module.forward
                    module.forward = partial(self._forward, inner)

    @contextmanager
    def otherwise(self, pack: Pack) -> Iterator[None]:
        """Where something else is saved in place of tensors that are no such inputs."""
        self._otherwise = pack
        try:
            with saved_tensors_hooks(pack, _itself):
                yield
        finally:
            self._otherwise = None

    def _forward(self, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        given = [value for value in _flat((args, kwargs)) if isinstance(value, Tensor)]
        self._places += [value.untyped_storage().data_ptr() for value in given]
        try:
            with saved_tensors_hooks(self._pack, _itself):
                return forward(*args, **kwargs)
        finally:
            del self._places[len(self._places) - len(given) :]

    def _pack(self, tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() in self._places and is_rounded(tensor):
            return rounded_in_tiles(tensor.detach())
        return tensor if self._otherwise is None else self._otherwise(tensor)


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


def _again(module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
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
