"""Outlines: what a stage returns and changes in place, found without computing anything.

A copy of the stage runs on fake tensors, which have a shape, a type and a device but no memory: no
weight or buffer is touched, nothing is drawn, no attribute of the user's module is set. Where a
stage cannot run so, or has hooks, which would notice, nothing is known of it.
"""

from __future__ import annotations

import copy
import logging
import random
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

from weft.runtime.device.shards import is_sharded
from weft.runtime.precision import FULL, Precision, cast
from weft.runtime.stage.calling import called
from weft.runtime.stage.graphs import nodes_of
from weft.runtime.stage.keyed import KeyedModule
from weft.runtime.stage.values import Names, Value, learns
from weft.runtime.transport.message import Layout, layout_of

MISFIT = re.compile(r"shape|size|\bdim|mismatch|must match|positional argument|out of range")
CAST, CHECKPOINT = "ToCopyBackward0", "CheckpointFunctionBackward"
PASSING = {CAST, "TBackward0", "TransposeBackward0"}
REGISTERED = "_parameters", "_buffers", "_modules"
UNSUITED = re.compile(r"(?i)fake|meta|symbol|data.dependent|subclass|storage")


class Outline(NamedTuple):
    """What is known of a stage."""

    value: Value  # that it returns, of fake tensors
    changes_inputs: bool  # in place
    differentiates: bool  # by its inputs, inside the forward
    repeated: tuple[str, ...]  # weights that it uses more than once
    casts: bool  # values from type to type

    def layout(self, names: Names) -> Layout:
        """Of what is under these names of it."""
        return layout_of(self.value.picked(names).packed())


class Misfit(Exception):
    """A stage that cannot take what it is given."""


@contextmanager
def outlining(*, is_compiled: bool) -> Iterator[None]:
    """Where outlines are made: eagerly, and with nothing drawn."""
    python, numpy = random.getstate(), np.random.get_state()
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level, log.level = log.level, logging.CRITICAL  # what fails here is no failure yet
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        stance = torch.compiler.set_stance("force_eager") if is_compiled else nullcontext()
        with stance, torch.enable_grad(), mode, _quiet():
            yield
    finally:
        log.level = level
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def outlined(
    stage: nn.Module,
    values: Sequence[Value],
    device: torch.device,
    precision: Precision = FULL,
    *,
    is_first: bool,
    is_last: bool = False,
) -> Outline | None:
    """The outline of a stage for these values, which are fake, as if it were on that device."""
    is_distributed = any(map(is_sharded, stage.parameters()))  # and would wait for other ranks
    if is_distributed or any(_is_watched(module) for module in stage.modules()):
        return None
    try:
        types, named = precision.types_of(stage), stage.named_parameters()
        weights = {id(weight): _fake(weight, device, types.get(name)) for name, weight in named}
        others = {id(one): _fake(one, device) for one in (*stage.buffers(), *_kept(stage))}
        twin = copy.deepcopy(stage, {**others, **weights})
        given = [_given(value, precision.compute, is_first=is_first) for value in values]
        seen: list[Tensor] = []
        for leaf in (leaf for value in given for leaf in value.leaves if leaf.requires_grad):
            leaf.register_hook(seen.append)  # type: ignore[no-untyped-call]
        result = Value.of(called(twin, given), "what it returns").marked()
    except Exception as error:
        if is_misfit(error):
            raise Misfit(str(error)) from error
        return None
    if not all(isinstance(leaf, FakeTensor) for leaf in result.leaves):
        return None
    is_changing = any(leaf._version for value in given for leaf in value.leaves)
    dtype = precision.judged if is_last else precision.compute
    plain = result.with_leaves(cast(leaf.detach(), dtype) for leaf in result.leaves)
    is_casting = any(type(node).__name__ == CAST for node in nodes_of(result.leaves))
    is_cast = is_casting or torch.is_autocast_enabled(device.type)
    repeated = _repeated(twin, result.leaves, is_cast=is_cast)
    return Outline(plain, is_changing, bool(seen), repeated, is_casting)


def _kept(stage: nn.Module) -> Iterator[Tensor]:
    """Tensors that modules keep besides, such as a table that a first forward has made.

    A copy of one cannot be made here. And only the rank whose forward it was has it: without an
    outline there, ranks would not agree on whether shapes travel.
    """
    for module in stage.modules():
        own = {name: one for name, one in vars(module).items() if name not in REGISTERED}
        yield from (one for one in tree_leaves(own) if isinstance(one, Tensor))


def _repeated(module: nn.Module, outputs: Sequence[Tensor], *, is_cast: bool) -> tuple[str, ...]:
    """The weights whose gradient is a sum, before or after casts and transpositions of them.

    Where weights are cast, that may be any of them as soon as there is a reentrant checkpoint: no
    graph shows what is used in it, and parts of a sum have the types of their uses.
    """
    if is_cast and any(node.name() == CHECKPOINT for node in nodes_of(outputs)):
        return tuple(name for name, _ in module.named_parameters())
    readers: dict[Any, list[Any]] = defaultdict(list)
    for node in nodes_of(outputs):
        for following, _ in node.next_functions:
            readers[following].append(node)

    def uses(node: Any) -> int:
        return sum(uses(one) if type(one).__name__ in PASSING else 1 for one in readers[node])

    leaves = {id(node.variable): node for node in [*readers] if hasattr(node, "variable")}
    named = [(name, leaves.get(id(weight))) for name, weight in module.named_parameters()]
    return tuple(name for name, node in named if node is not None and uses(node) > 1)


def _is_watched(module: nn.Module) -> bool:
    """Whether somebody else would notice a forward."""
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    return any(not isinstance(getattr(hook, "__self__", None), KeyedModule) for hook in hooks)


def faked(value: Value, device: torch.device) -> Value:
    """A value on a device, without memory, where outlines are made."""
    return value.with_leaves(_fake(leaf, device) for leaf in value.leaves)


def _fake(value: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    made = torch.empty(
        value.shape,
        dtype=dtype if dtype and value.is_floating_point() else value.dtype,
        device=device,
    )
    if isinstance(value, nn.Parameter):
        return nn.Parameter(made, requires_grad=value.requires_grad)
    return made


def _given(value: Value, dtype: torch.dtype | None, *, is_first: bool) -> Value:
    """A value as the stage gets it, which it may change in place."""

    def copied(leaf: Tensor, is_fixed: bool) -> Tensor:
        made = torch.empty_like(leaf, dtype=dtype if dtype and leaf.is_floating_point() else None)
        return made.requires_grad_(learns(made) and not is_first and not is_fixed).clone()

    return value.with_leaves(map(copied, value.leaves, value.structure.fixed))


def is_misfit(error: Exception) -> bool:
    kinds = (RuntimeError, ValueError, IndexError, TypeError)
    text = str(error)
    return isinstance(error, kinds) and bool(MISFIT.search(text)) and not UNSUITED.search(text)
