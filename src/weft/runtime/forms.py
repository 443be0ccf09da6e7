"""Forms: the shapes and types of all values that pass between stages, without computing any.

The stages run once on meta tensors for each size of microbatch: no memory, no randomness, no
buffer is touched. Where a stage cannot run so, its forms are not known, and travel with the
messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from weft.errors import InputError
from weft.ir.graph import Graph
from weft.ir.kinds import Direction
from weft.runtime.message import Form, Forms, Layout, Message

Outputs: TypeAlias = list[Layout] | None  # of every stage; None where a stage cannot run so


class StageForms:
    """Forms of every message of a run, where the stages run on meta tensors."""

    def __init__(
        self,
        stages: Sequence[nn.Module],
        graph: Graph,
        loss: Callable[..., Tensor],
        dtype: torch.dtype | None = None,
    ) -> None:
        self._graph, self._loss, self._dtype = graph, loss, dtype
        self._stages = [_Meta(stage, dtype) for stage in stages]
        self._known: dict[tuple[Layout, Layout], Outputs] = {}
        self._now: dict[int, Outputs] = {}

    def begin(
        self, inputs: Sequence[tuple[Tensor, ...]], targets: Sequence[tuple[Tensor, ...]]
    ) -> None:
        """Take a run's microbatches; refuse shapes that do not fit the stages or the loss."""
        self._now.clear()
        self.go_on(range(len(inputs)), inputs, targets)

    def go_on(
        self,
        numbers: Iterable[int],
        inputs: Sequence[tuple[Tensor, ...]],
        targets: Sequence[tuple[Tensor, ...]],
    ) -> None:
        """Take further microbatches under these numbers."""
        for number, data, target in zip(numbers, inputs, targets, strict=True):
            key = tuple(map(Form.of, data)), tuple(map(Form.of, target))
            if key not in self._known:
                self._known[key] = self._outputs(*key)
            self._now[number] = self._known[key]

    def of(self, message: Message) -> Forms:
        """A call that tells the forms of a message in the run at hand."""
        source, _ = self._graph.edges[message.edge]
        is_gradient = message.direction is Direction.GRADIENT

        def forms() -> Sequence[Form | None] | None:
            outputs = self._now[message.microbatch]
            if outputs is None:
                return None
            return _gradients(outputs[source]) if is_gradient else outputs[source]

        return forms

    def _outputs(self, inputs: Sequence[Form], target: Sequence[Form]) -> Outputs:
        values: list[tuple[Tensor, ...]] = []
        first = _empty(inputs)
        stage = 0
        try:
            with torch.no_grad():
                for stage, meta in enumerate(self._stages):
                    before = [v for other in self._graph.predecessors[stage] for v in values[other]]
                    values.append(meta(before or first))
                self._loss(values[-1][0], *_empty(target))
        except Exception as error:
            if isinstance(error, NotImplementedError) or "meta" in str(error).lower():
                return None
            at = f"stage {stage}" if len(values) < len(self._stages) else "the loss"
            shapes = [list(form.shape) for form in inputs]
            raise InputError(
                f"{at} does not fit a microbatch of shape {shapes}: {error}"
            ) from error
        return [tuple(map(Form.of, outputs)) for outputs in values]


class _Meta:
    """A stage as it would run on tensors without memory."""

    def __init__(self, stage: nn.Module, dtype: torch.dtype | None) -> None:
        self._stage, self._dtype = stage, dtype

    def __call__(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        stage, dtype = self._stage, self._dtype
        weights = {
            name: torch.empty_like(value, device="meta", dtype=dtype if learns else None)
            for named, learns in ((stage.named_parameters(), True), (stage.named_buffers(), False))
            for name, value in named
        }
        given = [v.to(dtype) if dtype and v.is_floating_point() else v for v in values]
        out = functional_call(stage, weights, tuple(given))
        return out if isinstance(out, tuple) else (out,)


def _empty(forms: Sequence[Form]) -> list[Tensor]:
    return [torch.empty(form.shape, dtype=form.dtype, device="meta") for form in forms]


def _gradients(layout: Layout) -> Layout | None:
    """What has a gradient; of several values, only the run tells which are used at all."""
    floating = [form is not None and form.dtype.is_floating_point for form in layout]
    if sum(floating) > 1:
        return None
    return tuple(form if has else None for form, has in zip(layout, floating, strict=True))
