"""The reference: what a step means, in one process, with no pipeline at all.

    for each microbatch: loss = weight * loss(model(batch), target), and its gradient
    for each stage and pipe: gradients added in the order of the program's B or W actions
    pipes summed in order, then the stages that share a weight
    clipping by the global norm; one optimizer step

Every program must give the same losses and gradients, bit for bit, as long as its stages run
the same kernels. Shares nothing with the executor but the definition of what is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.runtime.batch import Data, cut, weights_of
from weft.runtime.randomness import Draw, keyed
from weft.runtime.split import names_of


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
        for index, stage in enumerate(stages):
            keyed(stage, self._draw, names_of(stage, index))
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
            self._draw.microbatch = microbatch
            output = self._whole_model(inputs[microbatch])
            loss = self._loss(output, *targets[microbatch]) * shares[microbatch]
            gradients.append(self._gradients(loss))
            losses.append(loss.detach())
        self._add_up(gradients)
        if update:
            self._update()
        self._draw.step += 1
        return torch.stack(losses).sum()

    def _whole_model(self, inputs: Sequence[Tensor]) -> Tensor:
        graph = self._program.graph
        values: dict[int, tuple[Tensor, ...]] = {}
        for index, stage in enumerate(self._stages):
            before = [value for other in graph.predecessors[index] for value in values[other]]
            out = functional_call(stage, self._aliases[index], tuple(before or inputs))
            values[index] = out if isinstance(out, tuple) else (out,)
        return values[len(self._stages) - 1][0]

    def _gradients(self, loss: Tensor) -> dict[Use, Tensor]:
        """The gradient of each weight in each stage that has it."""
        wanted = [use for use in self._uses if use.leaf.requires_grad]
        leaves = [use.leaf for use in wanted]
        grads: Sequence[Tensor | None] = torch.autograd.grad(loss, leaves, allow_unused=True)
        return {use: grad for use, grad in zip(wanted, grads, strict=True) if grad is not None}

    def _add_up(self, gradients: Sequence[dict[Use, Tensor]]) -> None:
        """Add a step's gradients to those of each pipe and stage; then sum these."""
        pipes = range(len(self._program.placement.pipes))
        ends: dict[nn.Parameter, list[Tensor]] = {}
        for use in self._uses:
            for pipe in pipes:
                for microbatch in self._orders[pipe, use.stage]:
                    self._add((pipe, use), gradients[microbatch].get(use))
            parts = [self._sums[pipe, use] for pipe in pipes if (pipe, use) in self._sums]
            if parts:
                ends.setdefault(use.weight, []).append(reduce(torch.add, parts))
        for weight, parts in ends.items():
            weight.grad = reduce(torch.add, parts)

    def _add(self, place: tuple[int, Use], gradient: Tensor | None) -> None:
        if gradient is not None:
            known = self._sums.get(place)
            self._sums[place] = gradient if known is None else known + gradient

    def _update(self) -> None:
        self._sums.clear()
        if self._optimizer is None:
            return
        if self._clip is not None:
            nn.utils.clip_grad_norm_(self._weights, self._clip, foreach=False)
        self._optimizer.step()
        self._optimizer.zero_grad()


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
