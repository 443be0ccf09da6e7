"""The reference: what a step means, in one process, with no pipeline at all.

    for each microbatch: loss = weight * loss(model(batch), target), and its gradient
    for each stage and pipe: gradients added in the order of the program's B or W actions
    pipes summed in order; clipping by the global norm; one optimizer step

Every program must give the same losses and gradients, bit for bit, as long as its stages run
the same kernels. Shares nothing with the executor but the definition of what is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.runtime.batch import Data, cut, weights_of
from weft.runtime.randomness import Draw, keyed
from weft.runtime.split import names_of


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
        named = [
            (f"{index}.{name}", parameter)
            for index, stage in enumerate(stages)
            for name, parameter in stage.named_parameters()
        ]
        self._optimizer = optimizer(named) if optimizer else None

    def step(self, batch: Data, target: Data, *, weights: Sequence[float] | None = None) -> Tensor:
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
        self._update()
        self._draw.step += 1
        return torch.stack(losses).sum()

    def _whole_model(self, inputs: Sequence[Tensor]) -> Tensor:
        graph = self._program.graph
        values: dict[int, tuple[Tensor, ...]] = {}
        for index, stage in enumerate(self._stages):
            before = [value for other in graph.predecessors[index] for value in values[other]]
            out = stage(*(before or inputs))
            values[index] = out if isinstance(out, tuple) else (out,)
        return values[len(self._stages) - 1][0]

    def _gradients(self, loss: Tensor) -> list[dict[nn.Parameter, Tensor]]:
        """For each stage, the gradient of each of its parameters."""
        wanted = [
            [parameter for parameter in stage.parameters() if parameter.requires_grad]
            for stage in self._stages
        ]
        flat = [parameter for parameters in wanted for parameter in parameters]
        grads: list[Tensor | None] = list(torch.autograd.grad(loss, flat, allow_unused=True))
        found = dict(zip(flat, grads, strict=True))
        return [
            {p: grad for p in parameters if (grad := found[p]) is not None} for parameters in wanted
        ]

    def _add_up(self, gradients: list[list[dict[nn.Parameter, Tensor]]]) -> None:
        pipes = len(self._program.placement.pipes)
        for index, stage in enumerate(self._stages):
            sums = [self._pipe_sum(gradients, index, pipe) for pipe in range(pipes)]
            for parameter in stage.parameters():
                parts = [part[parameter] for part in sums if parameter in part]
                if parts:
                    total = parts[0]
                    for part in parts[1:]:
                        total = total + part
                    parameter.grad = total

    def _pipe_sum(
        self, gradients: list[list[dict[nn.Parameter, Tensor]]], stage: int, pipe: int
    ) -> dict[nn.Parameter, Tensor]:
        total: dict[nn.Parameter, Tensor] = {}
        for microbatch in _order(self._program, stage, pipe):
            for parameter, grad in gradients[microbatch][stage].items():
                known = total.get(parameter)
                total[parameter] = grad if known is None else known + grad
        return total

    def _update(self) -> None:
        if self._optimizer is None:
            return
        if self._clip is not None:
            parameters = [p for stage in self._stages for p in stage.parameters()]
            nn.utils.clip_grad_norm_(parameters, self._clip, foreach=False)
        self._optimizer.step()
        self._optimizer.zero_grad()


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
