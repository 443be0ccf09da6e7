"""Faults that the runtime once had, put back: the machine must find every one of them.

python -m tests.runtime.habits.faults       after how many cases it does
"""

from __future__ import annotations

import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.habits.draws import drawn
from tests.runtime.habits.judge import judge
from weft import runtime
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.runtime import task
from weft.runtime.criterion import Criterion
from weft.runtime.lane import bind, steps
from weft.runtime.pipeline import Pipeline
from weft.runtime.stage import borders, deferred, keyed, outline, prints
from weft.runtime.stage.borders import Borders
from weft.runtime.stage.buffers import Buffers
from weft.runtime.stage.contexts import Contexts
from weft.runtime.stage.deferred import Layer
from weft.runtime.stage.randomness import Draw
from weft.runtime.stage.shapes import StageShapes
from weft.runtime.stage.values import Value
from weft.runtime.training import Training

MOST = 1000  # cases


class Fault(NamedTuple):
    """How it comes back, and a witness that shows it."""

    put_back: Callable[[pytest.MonkeyPatch], None]
    witness: str


# splitting, sharing


def _split_without_repeats(patch: pytest.MonkeyPatch) -> None:
    right = runtime.split

    def wrong(model: nn.Sequential, **cut: Any) -> list[nn.Module]:
        return right(nn.Sequential(OrderedDict(model.named_children())), **cut)

    patch.setattr(runtime, "split", wrong)


def _shared_modules(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(task, "unshared", lambda stages: (list(stages), set()))


# randomness


def _nothing_keyed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Draw, "seed_all", lambda *_: None)


def _only_dropout_keyed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        keyed, "_may_draw", lambda module: isinstance(module, nn.modules.dropout._DropoutNd)
    )


# values


def _first_output_alone(patch: pytest.MonkeyPatch) -> None:
    right = Criterion.__call__

    def wrong(self: Criterion, out: Any, microbatch: int) -> Tensor:
        return right(self, out[0] if type(out) is tuple else out, microbatch)

    patch.setattr(Criterion, "__call__", wrong)


def _complex_without_gradient(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(borders, "learns", Tensor.is_floating_point)


def _by_dimensions(patch: pytest.MonkeyPatch) -> None:
    """What has no dimension is taken for the loss, and the loss for what has none."""

    def wrong(self: Borders, outputs: Any, gradients: Any) -> tuple[list[Tensor], list[Tensor]]:
        given = [None] * len(outputs) if self._role.loss is not None else gradients
        roots = [
            (value, torch.ones_like(value) if grad is None else grad)
            for value, grad in zip(outputs, given, strict=True)
            if value.requires_grad and (grad is not None or value.dim() == 0)
        ]
        return [value for value, _ in roots], [grad for _, grad in roots]

    patch.setattr(Borders, "roots", wrong)


# hooks


def _hooks_skipped(patch: pytest.MonkeyPatch) -> None:
    def wrong(layer: Layer, value: Tensor) -> bool:
        return value.dim() >= 2 and any(weight.requires_grad for weight in layer.weights)

    patch.setattr(Layer, "is_deferrable", wrong)


def _later_hooks_skipped(patch: pytest.MonkeyPatch) -> None:
    right = deferred._hooks_after
    calls: list[Any] = []

    def wrong(weight: nn.Parameter) -> Any:
        """Found where they are put aside; lost where they are called."""
        found = right(weight)
        is_asked_before = any(one is weight for one in calls)
        calls.append(weight)
        return {} if is_asked_before else found

    patch.setattr(deferred, "_hooks_after", wrong)


# the order of sums, layout


def _last_edge_first(patch: pytest.MonkeyPatch) -> None:
    right = steps.summed
    patch.setattr(steps, "summed", lambda arrived: right([*reversed(arrived)]))


def _any_layout(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(borders, "contiguous", Tensor.detach)


# memory


def _later_buffers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Buffers, "again", lambda self, _: self.copies())
    patch.setattr(prints, "_are_same", lambda *_: True)  # which would notice


def _all_or_nothing(patch: pytest.MonkeyPatch) -> None:
    """A stage that recomputes some microbatches keeps no graph for the others."""
    right = bind._covered

    def wrong(program: Program, kind: Kind) -> set[tuple[int, int, int | None]]:
        found = right(program, kind)
        stages = {place for place, _, _ in found}
        everything = {(one, n) for one in stages for n in range(program.microbatches)}
        return {(*place, None) for place in everything} if kind is Kind.R else found

    patch.setattr(bind, "_covered", wrong)


def _outlined_itself(patch: pytest.MonkeyPatch) -> None:
    class Itself:
        @staticmethod
        def deepcopy(module: nn.Module, _memo: object) -> nn.Module:
            return module

    patch.setattr(outline, "copy", Itself)


def _all_trained_after_evaluate(patch: pytest.MonkeyPatch) -> None:
    right = Pipeline.evaluate

    def wrong(self: Pipeline, *given: Any, **more: Any) -> Any:
        trained = [module for module in self.modules.values() if module.training]
        result = right(self, *given, **more)
        for module in trained:
            module.train()
        return result

    patch.setattr(Pipeline, "evaluate", wrong)


def _gradients_discarded(patch: pytest.MonkeyPatch) -> None:
    right = Training.settle

    def wrong(self: Training) -> Any:
        found = right(self)
        for group in self._weights.all_groups:
            for weight in group.weights:
                weight.grad = None
        return found

    patch.setattr(Training, "settle", wrong)


# autograd


def _checkpoint_unrecorded(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint that runs in the backward finds no tape."""
    right = Contexts.backward

    @contextmanager
    def wrong(self: Contexts, saved: Any) -> Iterator[None]:
        with right(self, saved):
            self._recorder.tape = None
            yield

    patch.setattr(Contexts, "backward", wrong)


def _one_type(patch: pytest.MonkeyPatch) -> None:
    def wrong(layer: nn.Linear, value: Tensor, gradient: Tensor) -> Tensor:
        return (gradient.flatten(0, -2) @ layer.weight).view_as(value)

    patch.setattr(deferred, "_linear_input_grad", wrong)


def _inputs_not_copied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StageShapes, "changes_inputs", lambda *_: False)


def _only_tensors(patch: pytest.MonkeyPatch) -> None:
    def wrong(tree: Any, _what: str) -> Value:
        leaves: Sequence[Any] = tree if isinstance(tree, tuple) else (tree,)
        return Value.unpacked([*leaves])

    patch.setattr(Value, "of", wrong)


FAULTS: dict[str, Fault] = {
    "split drops layers that stand twice": Fault(
        _split_without_repeats, "split drops layers that stand twice"
    ),
    "a module in two stages is written over": Fault(_shared_modules, "one module in two stages"),
    "nothing is keyed": Fault(_nothing_keyed, "functional dropout by another schedule"),
    "only dropout modules are keyed": Fault(
        _only_dropout_keyed, "functional dropout by another schedule"
    ),
    "the loss gets the first output alone": Fault(
        _first_output_alone, "the loss gets a part of the outputs"
    ),
    "values are tensors or tuples": Fault(_only_tensors, "a dict"),
    "complex values have no gradient": Fault(_complex_without_gradient, "a complex value"),
    "a number that nobody reads has a gradient": Fault(
        _by_dimensions, "a number that nobody reads"
    ),
    "a loss of one element has none": Fault(_by_dimensions, "a loss of one element"),
    "hooks of deferred weights are skipped": Fault(
        _hooks_skipped, "a weight's hook and a split backward"
    ),
    "hooks after accumulation are skipped": Fault(
        _later_hooks_skipped, "a hook after accumulation and a split backward"
    ),
    "gradients of several readers in another order": Fault(
        _last_edge_first, "a value with several readers"
    ),
    "values of any layout": Fault(_any_layout, "a transposed output"),
    "recomputation reads later buffers": Fault(
        _later_buffers, "recomputation reads a later buffer"
    ),
    "recomputation of some microbatches loses the others": Fault(
        _all_or_nothing, "recomputation of some microbatches"
    ),
    "stages are outlined themselves": Fault(
        _outlined_itself, "a table made on tensors without memory"
    ),
    "evaluate trains all modules": Fault(
        _all_trained_after_evaluate, "evaluate and a part in evaluation mode"
    ),
    "gradients are discarded without an optimizer": Fault(_gradients_discarded, "no optimizer"),
    "a checkpoint does not record": Fault(
        _checkpoint_unrecorded, "a checkpoint and a split backward"
    ),
    "deferred gradients have one type": Fault(_one_type, "autocast around and a split backward"),
    "inputs are changed in place": Fault(_inputs_not_copied, "in place on the input"),
}


def found_after(fault: Fault) -> int | None:
    """How many cases it takes until one shows it, which is right without it."""
    for number in range(MOST):
        case = drawn(number)
        with pytest.MonkeyPatch.context() as patch:
            fault.put_back(patch)
            is_wrong = judge(case).kind == "wrong"
        if is_wrong and judge(case).kind != "wrong":
            return number + 1
    return None


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name, fault in FAULTS.items():
        found = found_after(fault)
        text = f"found by case {found}" if found else f"not found in {MOST} cases"
        print(f"{name}: {text}", file=sys.stdout, flush=True)


if __name__ == "__main__":
    main()
