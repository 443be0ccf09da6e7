"""Marked modules at work: what they save of their inputs, and running them again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from weft.errors import InputError
from weft.runtime.device.shards import local
from weft.runtime.stage.storage.marks import Mark, MarkedModule, is_rounded, marked
from weft.runtime.stage.storage.returned import Notes, Rerun, Returned
from weft.runtime.stage.storage.tiles import Tiles
from weft.runtime.stage.swap import Slots

SAVE_INPUTS = (nn.GELU, nn.GroupNorm, nn.LayerNorm, nn.SiLU)  # and little else


class Marked:
    """The marked modules of a stage: a policy for what autograd saves while they run, and after.

    Where backwards find newer weights, running a module again would not give what it returned:
    `keeps_outputs` then.
    """

    def __init__(self, stage: nn.Module, *, keeps_outputs: bool = False) -> None:
        self._inputs: list[set[int]] = []  # memory of the inputs of modules that run
        self._notes, self._keeps_outputs = Notes(), keeps_outputs
        self._found = marked(stage)
        for one in self._found:
            one.module.forward = partial(_forward, self, one, one.module.forward)

    @property
    def rounding(self) -> set[int]:
        """The weights of modules that are stored in FP8."""
        stored = (one.module for one in self._found if Mark.FP8 in one.mark)
        return {id(weight) for module in stored for weight in module.parameters()}

    def __bool__(self) -> bool:
        return bool(self._found)

    def __deepcopy__(self, memo: dict[int, object]) -> Marked:
        return self  # of no use to a copy of the stage, which has its own

    def store(self, tensor: Tensor) -> Tiles | Returned | None:
        """An input of a module that stores in FP8, in tiles; what a recomputed one returned."""
        return Tiles(tensor) if self._is_stored(tensor) else self._notes.store(tensor)

    def _is_stored(self, tensor: Tensor) -> bool:
        return any(_place(tensor) in places for places in self._inputs) and is_rounded(tensor)

    def check(self) -> None:
        """Any backward will do."""

    def run(
        self, one: MarkedModule, forward: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """A marked module's forward."""
        given = [*filter(_is_tensor, pytree.tree_leaves((args, kwargs)))]
        self._inputs.append({*map(_place, given)} if Mark.FP8 in one.mark else set())
        try:
            if Mark.AGAIN not in one.mark:
                return forward(*args, **kwargs)
            before = [tensor._version for tensor in given]
            out = self._run_repeatably(one, forward, args, kwargs, given)
            if before != [tensor._version for tensor in given]:
                _refuse_changed(one)
            return out
        finally:
            self._inputs.pop()

    def _run_repeatably(
        self,
        one: MarkedModule,
        forward: Callable[..., Any],
        args: Any,
        kwargs: dict[str, Any],
        given: Sequence[Tensor],
    ) -> Any:
        """The forward of a module that is recomputed, from what is saved of what it is given."""
        call = _repeatable(one.module, forward)
        is_rounded_again = any(map(self._is_stored, given))  # and returned what is not rounded
        keeps_output = self._keeps_outputs or is_rounded_again
        rerun = None if keeps_output else Rerun(call, args, kwargs)
        if rerun is not None and type(one.module) in SAVE_INPUTS:
            out = call(*args, **kwargs)
        else:
            out = checkpoint(call, *args, use_reentrant=False, **kwargs)
        if rerun is not None:
            self._notes.note(out, rerun)
        return out


def _refuse_changed(one: MarkedModule) -> None:
    raise InputError(
        f"{one.name or type(one.module).__name__} is recomputed, and changes its input in place, so"
        f" that it would run again on what it has changed; make it return something new"
        f" (inplace=False), or leave the mark out"
    )


def _repeatable(module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward that changes its module the first time alone, and finds what was there then."""
    weights = dict(module.named_parameters())
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    is_first = True

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_first
        if is_first or not (before or weights):
            is_first = False
            return forward(*args, **kwargs)
        again = {name: buffer.clone() for name, buffer in before.items()}
        with Slots(module).holding(weights | again):
            return forward(*args, **kwargs)

    return call


def unmarked(stage: nn.Module) -> None:
    """Let marked modules run as they did before another stage was made of them."""
    for module in stage.modules():
        own = vars(module).get("forward")
        if isinstance(own, partial) and own.func is _forward:
            del module.forward
            inner = own.args[2]
            if getattr(inner, "__func__", None) is not type(module).forward:
                module.forward = inner


def _forward(
    within: Marked, one: MarkedModule, forward: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return within.run(one, forward, args, kwargs)


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided


def _place(tensor: Tensor) -> int:
    return local(tensor).untyped_storage().data_ptr()
