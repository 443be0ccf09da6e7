"""Passes over a whole batch: some stages take all microbatches at once, others one after the other.

Every stage runs by itself, from values without a history. One that takes the whole batch runs once,
as the first microbatch, on the values of all of them joined. Backwards come in the opposite order
of stages, and for each stage in the order of the microbatches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from weft.runtime.losses import LossShare
from weft.runtime.reference.model import Microbatch, WholeModel, added
from weft.runtime.reference.passes import apart, collected
from weft.runtime.reference.weights import ByUse
from weft.runtime.stage.cast import without_autocast
from weft.runtime.stage.seeds import Drawn
from weft.runtime.stage.values import Value, contiguous, spread


class _Run(NamedTuple):
    """A stage of a microbatch, or of all of them."""

    one: Microbatch
    given: Sequence[Value]
    returned: Value
    drawn: Drawn


class BatchPass:
    """A batch under way, forwards and backwards."""

    def __init__(
        self, model: WholeModel, microbatches: Sequence[Microbatch], leaves: ByUse
    ) -> None:
        self._model, self._all, self._leaves = model, microbatches, leaves
        self._runs: list[list[_Run]] = []  # by stage: one for each microbatch, or one for all
        self._values: list[list[Value]] = []  # by stage and microbatch, as readers get them
        self._gradients: dict[tuple[int, int], list[Sequence[Tensor | None]]] = {}  # by edge

    def run(self, scale: float) -> tuple[list[Tensor], list[ByUse]]:
        """The loss and the gradients of each microbatch; what belongs to all is the first's."""
        stages, found = range(len(self._model.stages)), [ByUse() for _ in self._all]
        for stage in stages:
            self._forward(stage)
        losses = [run.returned.leaves[0].detach() for run in self._runs[-1]]
        losses += [torch.zeros_like(losses[0])] * (len(self._all) - len(losses))
        for stage in reversed(stages):
            for run in self._runs[stage]:
                found[run.one.number] |= self._backward(stage, run, scale)
        return losses, found

    def _is_whole(self, stage: int) -> bool:
        return self._model.graph.stages[stage].is_whole_batch

    def _forward(self, stage: int) -> None:
        model, given = self._model, [self._given(stage, one) for one in self._all]
        batch = self._all
        if self._is_whole(stage):
            target = _joined([one.target for one in batch])
            batch = [batch[0]._replace(target=target, share=LossShare(1.0, 1.0))]
            given = [[_joined(each) for each in zip(*given, strict=True)]]
        self._runs.append([self._called(stage, *each) for each in zip(batch, given, strict=True)])
        returned = [run.returned for run in self._runs[-1]]
        if model.graph.successors[stage]:
            values = self._cut(returned[0]) if self._is_whole(stage) else returned
            self._values.append([apart(value.cloned()) for value in values])
        else:
            self._values.append([])

    def _given(self, stage: int, one: Microbatch) -> list[Value]:
        model, number = self._model, one.number
        read = [
            model.crossings.of(edge, number).value(
                self._values[edge[0]][number].picked(model.carries.get(edge))
            )
            for edge in ((other, stage) for other in model.graph.predecessors[stage])
        ]
        return [apart(value) for value in read] or [model.copied(one.inputs)]

    def _called(self, stage: int, one: Microbatch, given: Sequence[Value]) -> _Run:
        model = self._model
        with model.running(one) as drawn:
            out = model.called(stage, [value.cloned() for value in given], self._leaves)
            if not model.graph.successors[stage]:
                out = model.loss(out, one)
        return _Run(one, given, model.returned(stage, out), drawn)

    def _backward(self, stage: int, run: _Run, scale: float) -> ByUse:
        model, outputs = self._model, run.returned.leaves
        gradients = self._arrived(stage, run, scale)
        pairs = zip(outputs, gradients, strict=True)
        wanted = [(out, g) for out, g in pairs if out.requires_grad and g is not None]
        mine = {use: leaf for use, leaf in self._leaves.items() if use.stage == stage}
        with model.draw.backward(run.drawn), without_autocast(model.device), model.holding(mine):
            found = collected(mine, wanted) if wanted else {}
        for other, value in zip(model.graph.predecessors[stage], run.given, strict=False):
            passed = [None if leaf.grad is None else contiguous(leaf.grad) for leaf in value.leaves]
            names, whole = model.carries.get((other, stage)), self._values[other][0].structure
            parts, first = [passed], run.one.number
            if self._is_whole(stage):
                parts = _cut([one.picked(names) for one in self._values[other]], passed)
            arrived = [
                model.crossings.of((other, stage), number).gradients(part)
                for number, part in enumerate(parts, start=first)
            ]
            placed = [spread(part, whole, names) for part in arrived]
            self._gradients.setdefault((other, stage), []).extend(placed)
        return found

    def _arrived(self, stage: int, run: _Run, scale: float) -> Sequence[Tensor | None]:
        """The gradient of each tensor that a stage returned; the scale, for the loss."""
        readers = self._model.graph.successors[stage]
        if not readers:
            return [torch.full_like(loss, scale) for loss in run.returned.leaves]
        each = [self._gradients[stage, reader] for reader in readers]
        by_microbatch = [
            [added(parts) for parts in zip(*found, strict=True)]
            for found in zip(*each, strict=True)
        ]
        if not self._is_whole(stage):
            return by_microbatch[run.one.number]
        return [self._joined(parts) for parts in zip(*by_microbatch, strict=True)]

    def _joined(self, parts: Sequence[Tensor | None]) -> Tensor | None:
        """The gradient of the whole batch; zeros for microbatches that have none."""
        there = [part for part in parts if part is not None]
        if not there:
            return None
        zeros = [there[0].new_zeros(rows, *there[0].shape[1:]) for rows in self._rows]
        return torch.cat([z if p is None else p for p, z in zip(parts, zeros, strict=True)])

    @property
    def _rows(self) -> list[int]:
        return [max(len(leaf) for leaf in one.inputs.leaves if leaf.dim()) for one in self._all]

    def _cut(self, value: Value) -> list[Value]:
        pieces = [torch.split(leaf, self._rows) for leaf in value.leaves]
        return [value.with_leaves(leaf[k] for leaf in pieces) for k in range(len(self._all))]


def _cut(values: Sequence[Value], gradients: Sequence[Tensor | None]) -> list[list[Tensor | None]]:
    """The gradients of the values of each microbatch, of those of the whole batch."""
    none, each = (None,) * len(values), zip(*(value.leaves for value in values), strict=True)
    pieces = [
        none if gradient is None else torch.split(gradient, [*map(len, leaves)])
        for gradient, leaves in zip(gradients, each, strict=True)
    ]
    return [[piece[k] for piece in pieces] for k in range(len(values))]


def _joined(values: Sequence[Value]) -> Value:
    each = zip(*(value.leaves for value in values), strict=True)
    return apart(values[0].with_leaves(torch.cat(leaves) for leaves in each))
