"""Compare: stages compute what their model computes, or are refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.ir.graph import Graph
from weft.runtime.split.copies import copied
from weft.runtime.split.piece import TracedPiece
from weft.runtime.split.stages import Stages
from weft.runtime.split.trace import is_on_meta
from weft.runtime.split.traits import Draws
from weft.runtime.stage.calling import called
from weft.runtime.stage.values import Value

ULPS = 64  # of the largest element: sums may be in another order
SEED = 0


def called_with(model: nn.Module, given: Any) -> Any:
    if isinstance(given, dict):
        return model(**given)
    return model(*given) if type(given) is tuple else model(given)


def compared(
    model: nn.Module,
    stages: Stages,
    example: Any,
    *,
    call: Callable[[nn.Module, Any], Any] = called_with,
) -> str:
    """Refuse stages that do not compute what the model computes; what was compared.

    A call gives what the last stage is to return.

    Both run on copies, with equal draws: in the present mode with gradients, in the other one,
    where stages have it, without. A model on the meta device has shapes to compare.
    """
    is_shape = is_on_meta(model)
    with _undisturbed(model):
        for is_training in _modes(model, stages):
            mine, theirs = _copies(model, stages, is_training)
            is_own = is_training == model.training
            run = _Comparison(example, is_own and not is_shape)
            wanted = run.output(mine, partial(call, mine))
            found = run.output(mine, partial(routed, theirs))
            _compare_outputs(wanted, found, is_training, is_shape)
            if is_own and not is_shape:
                run.differentiate(wanted)
                run.differentiate(found)
                _compare_gradients(mine, theirs)
    return "by shape" if is_shape else "by value"


def routed(stages: Stages, given: Any) -> Any:
    """What stages compute, one after the other, each with what the edges carry to it."""
    graph = stages.graph or Graph.chain(len(stages))
    results: list[Value] = []
    for index, stage in enumerate(stages):
        before = graph.predecessors[index]
        values = [results[other].picked(stages.carries.get((other, index))) for other in before]
        result = called(stage, values or [Value.of(given, "the example")])
        results.append(Value.of(result, f"what stage {index} returns"))
    return results[-1].tree


def _modes(model: nn.Module, stages: Stages) -> list[bool]:
    """The model's own mode first; the other, if the stages can be in it."""
    others = all((not model.training) in _of(stage) for stage in stages)
    return [model.training, not model.training] if others else [model.training]


def _of(stage: nn.Module) -> tuple[bool, ...]:
    return stage.modes if isinstance(stage, TracedPiece) else (True, False)


def _copies(model: nn.Module, stages: Stages, is_training: bool) -> tuple[nn.Module, Stages]:
    what = type(model).__name__
    mine, theirs = copied(model, [model], what), copied([*stages], stages, what)
    for one in (mine, *theirs):
        one.zero_grad()
        if is_training != model.training:
            one.train(is_training)
    return mine, Stages(theirs, graph=stages.graph, carries=stages.carries)


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """No random state is left changed."""
    kinds = {weight.device for weight in model.parameters()} - {torch.device("cpu")}
    devices = [device for device in kinds if device.type == "cuda"]
    with torch.random.fork_rng(devices=devices):
        yield


class _Comparison:
    """Runs of the model and of the stages, alike."""

    def __init__(self, example: Any, is_graded: bool) -> None:
        self._example, self._is_graded = example, is_graded

    def output(self, module: nn.Module, call: Callable[[Any], Any]) -> Value:
        device = next((weight.device for weight in module.parameters()), None)
        given = Value.of(copy.deepcopy(self._example), "the example")
        given = given if device is None else given.to(device)
        with torch.set_grad_enabled(self._is_graded), Draws(SEED):
            return Value.of(call(given.tree), "what the model returns")

    def differentiate(self, value: Value) -> None:
        """Gradients of a sum of all outputs, each element of which counts differently."""
        generator = torch.Generator().manual_seed(SEED)
        total: Any = 0.0
        for leaf in value.leaves:
            if leaf.requires_grad:
                shares = torch.rand(
                    leaf.shape, generator=generator, dtype=torch.float64, device="cpu"
                )
                counted = leaf * shares.to(leaf)
                total = total + (counted.abs() if leaf.is_complex() else counted).sum()
        if isinstance(total, Tensor):
            with Draws(SEED):
                total.backward()  # type: ignore[no-untyped-call]


def _compare_outputs(wanted: Value, found: Value, is_training: bool, is_shape: bool) -> None:
    mode = "in training" if is_training else "in evaluation"
    if wanted.structure != found.structure:
        raise InputError(f"the stages return another structure than the model, {mode}")
    for (place, mine), theirs in zip(wanted.named(), found.leaves, strict=True):
        why = _difference(mine, theirs, is_shape=is_shape)
        if why:
            raise InputError(
                f"the stages do not compute what the model does {mode}: output{place} {why}"
            )


def _compare_gradients(model: nn.Module, stages: Stages) -> None:
    known: dict[str, tuple[int, nn.Parameter]] = {}
    for index, stage in enumerate(stages):
        for name, weight in stage.named_parameters(remove_duplicate=False):
            known.setdefault(name, (index, weight))
    for name, weight in model.named_parameters():
        if name not in known:
            raise InputError(f"no stage has the weight {name} of the model")
        index, other = known[name]
        why = _gradient_difference(weight.grad, other.grad)
        if why:
            raise InputError(
                f"the stages do not compute what the model does: the gradient of {name} in stage"
                f" {index} {why}"
            )


def _gradient_difference(mine: Tensor | None, theirs: Tensor | None) -> str:
    if mine is None or theirs is None:
        is_one = (mine is None) != (theirs is None)
        return f"is {'missing' if theirs is None else 'there, and should not be'}" if is_one else ""
    if mine.layout != theirs.layout:
        return f"is {theirs.layout} instead of {mine.layout}"
    return _difference(mine.to_dense(), theirs.to_dense(), is_shape=False)


def _difference(mine: Tensor, theirs: Tensor, *, is_shape: bool) -> str:
    """Why two tensors are not the same."""
    kinds = [(tuple(one.shape), str(one.dtype)) for one in (mine, theirs)]
    if kinds[0] != kinds[1]:
        return f"is {kinds[1]} instead of {kinds[0]}"
    if is_shape or not mine.numel() or torch.equal(mine, theirs):
        return ""
    if not (mine.is_floating_point() or mine.is_complex()):
        return "has other elements"
    size = mine.detach().abs().max().item()
    tolerance = ULPS * torch.finfo(mine.dtype).eps * size
    both = [one.detach().nan_to_num() for one in (mine, theirs)]
    worst = (both[0] - both[1]).abs().max().item()
    is_same = worst <= tolerance and torch.equal(mine.isnan(), theirs.isnan())
    return "" if is_same else f"differs by {worst:.2g}, where the largest element is {size:.2g}"
