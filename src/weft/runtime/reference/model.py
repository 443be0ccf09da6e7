"""The model: its stages, called one after the other in one process, with chosen weights.

Values and gradients that cross from stage to stage are contiguous, and the gradients of a value
that several stages read are added in the order of the edges, as they are where values travel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from weft.ir.graph import Graph
from weft.runtime.losses import LossFunction, LossShare, Parts
from weft.runtime.precision import Precision
from weft.runtime.reference.rounding import Crossings
from weft.runtime.reference.storing import SavedInputs
from weft.runtime.reference.weights import ByUse
from weft.runtime.stage.calling import called, names_of
from weft.runtime.stage.keyed import KeyedModules
from weft.runtime.stage.randomness import Draw
from weft.runtime.stage.seeds import Drawn
from weft.runtime.stage.swap import Slots
from weft.runtime.stage.values import Carries, Value


class Microbatch(NamedTuple):
    """What a user gives for a microbatch of a step; `share` is how much its loss counts."""

    number: int
    inputs: Value
    target: Value
    share: LossShare


class WholeModel:
    """The stages of a model and its loss."""

    def __init__(
        self,
        stages: Sequence[nn.Module],
        graph: Graph,
        loss: LossFunction,
        *,
        carries: Carries,
        seed: int,
        precision: Precision,
        crossings: Crossings,
    ) -> None:
        self.stages, self.graph, self._loss, self._precision = stages, graph, loss, precision
        self.crossings = crossings
        self.carries, self.draw = carries, Draw(seed)
        KeyedModules(
            [(names_of(stage, index), stage) for index, stage in enumerate(stages)], self.draw
        )
        self.saved_inputs = SavedInputs(stages)  # after that: what rounds may not seem to draw
        weights = (weight for stage in stages for weight in stage.parameters())
        self.device = next((weight.device for weight in weights), torch.device("cpu"))
        self._slots = [*map(Slots, stages)]

    def running(self, one: Microbatch) -> AbstractContextManager[Drawn]:
        """Where a microbatch runs forward: it draws what it draws anywhere, and torch may cast."""
        return _both(self.draw.forward(one.number, device=self.device), self._casting())

    def output(self, one: Microbatch, leaves: ByUse) -> Any:
        """What the last stage returns for a microbatch, all stages in one graph."""
        values: dict[tuple[int, int], Value] = {}  # by edge
        out: Any = None
        for index, readers in enumerate(self.graph.successors):
            before = [values[other, index] for other in self.graph.predecessors[index]]
            out = self.called(index, before or [self.copied(one.inputs)], leaves)
            if readers:
                value = self.returned(index, out)
                for reader, copy in zip(readers, _handed(value, len(readers)), strict=True):
                    edge = index, reader
                    crossing = self.crossings.of(edge, one.number)
                    values[edge] = crossing.value(copy.picked(self.carries.get(edge)))
        return out

    def called(
        self,
        index: int,
        given: Sequence[Value],
        leaves: ByUse,
        buffers: Mapping[str, Tensor] | None = None,
    ) -> Any:
        """What one stage returns, computed with these leaves, and buffers in place of its own."""
        given = [_cast(value, self._precision.compute) for value in given]
        held = {**_swapped(leaves, index), **(buffers or {})}
        with self._slots[index].holding(held), self.saved_inputs.saving():
            return called(self.stages[index], given)

    def loss(self, output: Any, one: Microbatch) -> Tensor:
        """What a microbatch adds to the loss of its step."""
        self.draw.enter_loss()
        if self._precision.judged is not None:
            value = Value.of(output, "what the last stage returns")
            output = _cast(value, self._precision.judged).tree
        parts = Parts.of(self._loss(output, *self.copied(one.target).arguments))
        return parts.weighted(one.share, output)

    def returned(self, index: int, out: Any) -> Value:
        """What a stage hands to others, or the loss of the last one."""
        value = Value.of(out, f"what stage {index} returns")
        is_read = bool(self.graph.successors[index])
        return _cast(value, self._precision.compute) if is_read else value

    def copied(self, value: Value) -> Value:
        """Data that a stage may change in place."""
        return value.with_leaves(leaf.to(self.device, copy=True) for leaf in value.leaves)

    @contextmanager
    def holding(self, leaves: ByUse) -> Iterator[None]:
        """Let checkpoints inside a backward find the weights of their forward."""
        with ExitStack() as stack:
            for index, slots in enumerate(self._slots):
                stack.enter_context(slots.holding(_swapped(leaves, index)))
            yield

    def _casting(self) -> AbstractContextManager[object]:
        dtype = self._precision.autocast
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)


@contextmanager
def _both(
    drawing: AbstractContextManager[Drawn], casting: AbstractContextManager[object]
) -> Iterator[Drawn]:
    with drawing as drawn, casting:
        yield drawn


def _cast(value: Value, dtype: torch.dtype | None) -> Value:
    """A value whose tensors of floating point have a type; None leaves them as they are."""
    if dtype is None:
        return value
    return value.with_leaves(x.to(dtype) if x.is_floating_point() else x for x in value.leaves)


def _swapped(leaves: ByUse, stage: int) -> dict[str, Tensor]:
    """What a stage computes with that is not its own."""
    return {
        use.name: leaf
        for use, leaf in leaves.items()
        if use.stage == stage and leaf is not use.weight
    }


class _Handed(torch.autograd.Function):
    """A tensor as its readers get it; their gradients are added in the order of the edges."""

    @staticmethod
    def forward(_context: Any, value: Tensor, readers: int) -> tuple[Tensor, ...]:
        return tuple(value.clone(memory_format=torch.contiguous_format) for _ in range(readers))

    @staticmethod
    def backward(_context: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        return added([g if g is None else g.contiguous() for g in gradients]), None


def added(gradients: Sequence[Tensor | None]) -> Tensor | None:
    """The sum of the gradients that are there, in their order."""
    there = [gradient for gradient in gradients if gradient is not None]
    return reduce(torch.add, there) if there else None


def _handed(value: Value, readers: int) -> list[Value]:
    """What each reader of a value gets."""
    copies: list[tuple[Tensor, ...]] = [
        _Handed.apply(leaf, readers)  # type: ignore[no-untyped-call]
        for leaf in value.leaves
    ]
    return [value.with_leaves(leaf[index] for leaf in copies) for index in range(readers)]
