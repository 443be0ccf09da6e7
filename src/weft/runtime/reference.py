"""The reference: what a step means, in one process, with no pipeline at all.

    for each microbatch: loss = weight * loss(model(batch), target), and its gradient
    for each stage and pipe: gradients added in the order of the program's B or W actions
    pipes summed in order, then the stages that share a weight
    clipping by the global norm; one optimizer step

Every program must give the same losses and gradients, bit for bit, as long as its stages run
the same kernels: values and gradients that cross from stage to stage are contiguous, and the
gradients of a value that several stages read are added in the order of the edges. Shares nothing
with the executor but the definition of what is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.runtime.batch import Data, cut, weights_of
from weft.runtime.stage.cast import without_autocast
from weft.runtime.stage.randomness import Draw, Drawing
from weft.runtime.stage.split import called, names_of
from weft.runtime.stage.swap import Slots
from weft.runtime.stage.values import Value


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """A weight in one stage: `leaf` collects its gradient there.

    The leaf is the weight itself, or an alias of it where an earlier stage has it too.
    """

    stage: int
    name: str
    weight: nn.Parameter
    leaf: Tensor

    @property
    def is_first(self) -> bool:
        return self.leaf is self.weight


class Reference:
    """The same arguments as `Pipeline`, the same results, one microbatch after the other."""

    def __init__(
        self,
        stages: Sequence[nn.Module],
        program: Program,
        *,
        loss: Callable[..., Tensor],
        optimizer: Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer] | None = None,
        clip: float | None = None,
        seed: int = 0,
    ) -> None:
        self._stages, self._program, self._loss, self._clip = stages, program, loss, clip
        self._draw = Draw(seed)
        Drawing([(names_of(stage, index), stage) for index, stage in enumerate(stages)], self._draw)
        weights = (weight for stage in stages for weight in stage.parameters())
        self._device = next((weight.device for weight in weights), torch.device("cpu"))
        self._slots = [*map(Slots, stages)]
        self._uses = _uses(stages)
        self._aliases = [
            {use.name: use.leaf for use in self._uses if use.stage == index and not use.is_first}
            for index in range(len(stages))
        ]
        self._orders = {
            (pipe, index): _order(program, index, pipe)
            for pipe in range(len(program.placement.pipes))
            for index in range(len(stages))
        }
        self._sums: dict[tuple[int, Use], Tensor] = {}  # by pipe
        named = [(f"{use.stage}.{use.name}", use.weight) for use in self._uses if use.is_first]
        self._weights = [weight for _, weight in named]
        self._optimizer = optimizer(named) if optimizer else None
        self._before: dict[nn.Parameter, Tensor] = {}

    def step(
        self,
        batch: Data,
        target: Data,
        *,
        weights: Sequence[float] | None = None,
        update: bool = True,
    ) -> Tensor:
        """One step; the loss of the batch."""
        count = self._program.microbatches
        inputs, targets = cut(batch, count, "batch"), cut(target, count, "target")
        shares = weights_of(weights, count)
        losses, gradients = [], []
        for microbatch in range(count):
            with self._draw.forward(microbatch, device=self._device) as drawn:
                output = self._whole_model(inputs[microbatch])
                wanted = targets[microbatch].to(self._device).arguments
                self._draw.enter_loss()
                loss = self._loss(output, *wanted) * shares[microbatch]
            with self._draw.backward(drawn), without_autocast(self._device):
                gradients.append(self._gradients(loss))
            losses.append(loss.detach())
        self._add_up(gradients)
        if update:
            self._update()
        elif self._optimizer is None:
            self._sums.clear()  # what was added is the user's
        self._draw.step += 1
        return torch.stack(losses).sum()

    def _whole_model(self, inputs: Value) -> Any:
        graph = self._program.graph
        values: dict[tuple[int, int], Value] = {}  # by edge
        out: Any = None
        for index, stage in enumerate(self._stages):
            before = [values[other, index] for other in graph.predecessors[index]]
            with self._slots[index].holding(self._aliases[index]):
                out = called(stage, before or [copied(inputs, self._device)])
            readers = graph.successors[index]
            if readers:
                value = Value.of(out, f"what stage {index} returns")
                for reader, one in zip(readers, handed(value, len(readers)), strict=True):
                    values[index, reader] = one
        return out

    def _gradients(self, loss: Tensor) -> dict[Use, Tensor]:
        """The gradient of each weight in each stage that has it."""
        wanted = [use for use in self._uses if use.leaf.requires_grad]
        if not loss.requires_grad:
            return {}
        kept = [use.leaf.grad for use in wanted]
        for use in wanted:
            use.leaf.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        found = {use: use.leaf.grad for use in wanted if use.leaf.grad is not None}
        for use, grad in zip(wanted, kept, strict=True):
            use.leaf.grad = grad
        return found

    def _add_up(self, gradients: Sequence[dict[Use, Tensor]]) -> None:
        """Add a step's gradients to those of each pipe and stage; then sum these."""
        pipes = range(len(self._program.placement.pipes))
        ends: dict[nn.Parameter, list[Tensor]] = {}
        if not self._sums:  # what a user without an optimizer has not cleared
            self._before = {w: w.grad for w in self._weights if w.grad is not None}
        for use in self._uses:
            for pipe in pipes:
                for microbatch in self._orders[pipe, use.stage]:
                    self._add((pipe, use), gradients[microbatch].get(use))
            parts = [self._sums[pipe, use] for pipe in pipes if (pipe, use) in self._sums]
            if parts:
                ends.setdefault(use.weight, []).append(reduce(torch.add, parts))
        for weight, parts in ends.items():
            total = reduce(torch.add, parts)
            weight.grad = self._before[weight] + total if weight in self._before else total

    def _add(self, place: tuple[int, Use], gradient: Tensor | None) -> None:
        if gradient is not None:
            known = self._sums.get(place)
            self._sums[place] = gradient if known is None else known + gradient

    def _update(self) -> None:
        self._sums.clear()
        if self._clip is not None:
            nn.utils.clip_grad_norm_(self._weights, self._clip, foreach=False)
        if self._optimizer is None:
            return
        self._optimizer.step()
        self._optimizer.zero_grad()


class _Handed(torch.autograd.Function):
    """A tensor as its readers get it; their gradients are added in the order of the edges."""

    @staticmethod
    def forward(_context: Any, value: Tensor, readers: int) -> tuple[Tensor, ...]:
        return tuple(value.clone(memory_format=torch.contiguous_format) for _ in range(readers))

    @staticmethod
    def backward(_context: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        there = [gradient.contiguous() for gradient in gradients if gradient is not None]
        return (reduce(torch.add, there) if there else None), None


def handed(value: Value, readers: int) -> list[Value]:
    """What each reader of a value gets."""
    copies: list[tuple[Tensor, ...]] = [
        _Handed.apply(leaf, readers)  # type: ignore[no-untyped-call]
        for leaf in value.leaves
    ]
    return [value.with_leaves(leaf[index] for leaf in copies) for index in range(readers)]


def copied(value: Value, device: torch.device) -> Value:
    """Data that a stage may change in place."""
    return value.with_leaves(leaf.to(device, copy=True) for leaf in value.leaves)


def _uses(stages: Sequence[nn.Module]) -> list[Use]:
    """Every weight of every stage, in model order."""
    seen: set[nn.Parameter] = set()
    uses = []
    for index, stage in enumerate(stages):
        for name, weight in stage.named_parameters():
            alias = weight.detach().requires_grad_(weight.requires_grad)
            uses.append(Use(index, name, weight, alias if weight in seen else weight))
        seen.update(stage.parameters())
    return uses


def _order(program: Program, stage: int, pipe: int) -> list[int]:
    """The microbatches of a stage in the order in which its weight gradients are added."""
    actions = program.actions
    is_end = np.isin(actions.kind, (Kind.B, Kind.W)) & (actions.stage == stage)
    rows = np.flatnonzero(is_end & (actions.pipe == pipe)).tolist()
    return [
        microbatch
        for row in rows
        for microbatch in range(
            int(actions.microbatch[row]), int(actions.microbatch[row] + actions.span[row])
        )
    ]
