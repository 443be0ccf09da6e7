"""Rests: what a host needs between two actions.

A pipeline runs the program with stages that only rest, passing values of the sizes that the real
ones pass. Where an action had all that it reads long before its device was free, what lies between
it and the action before is the host's: to hand on, to record, to receive.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.ir.earliest import Seconds
from weft.ir.program import Program
from weft.lower import over
from weft.runtime.pipeline import Pipeline
from weft.runtime.profile.sample import Effort, StageValues, Watch
from weft.runtime.suit import is_asynchronous
from weft.runtime.transport.message import Layout, TensorShape, layout_of
from weft.timeline import Timeline

WARM_UP = 2
TRIMMED = 0.1  # of the gaps, at either end
SCALAR: Layout = (TensorShape((1,), torch.float32),)


def overhead(
    values: StageValues, program: Program, effort: Effort, rest: float, watch: Watch
) -> float:
    """Seconds between two actions of a device, each of so long a rest; every rank calls this."""
    if not dist.is_initialized() or effort.transport == "loopback":
        return 0.0  # devices take turns in this process
    program = over(program, replace(program.graph, fixed=frozenset()))  # what rests returns floats
    (data,) = values.inputs[0]
    device = next((leaf.device for leaf in data.leaves), torch.device("cpu"))
    stages = [
        Resting(layout_of(value.leaves) or SCALAR, rest).to(device) for value in values.outputs
    ]
    batch = [tuple(map(torch.zeros_like, data.leaves))]
    target = [torch.zeros(1, device="cpu")]
    count, is_stale = program.microbatches, is_asynchronous(program)
    found = []
    with Pipeline(
        stages,
        program,
        loss=lambda output, _: output.sum(),
        optimizer=lambda named: torch.optim.SGD([weight for _, weight in named], lr=0.0),
        transport=effort.transport,
    ) as pipeline:
        for step in range(WARM_UP + effort.steps):
            result = pipeline.step(batch * count, target * count, update=is_stale)
            if step >= WARM_UP and not is_stale:
                found.append(gaps(pipeline.gathered(result), margin=rest / 2))
            watch("host", (step + 1) / (WARM_UP + effort.steps))
        if is_stale:
            found.append(gaps(pipeline.gathered(pipeline.drain()), margin=rest / 2))
    return trimmed_mean(np.concatenate(found))


def gaps(timeline: Timeline, *, margin: float) -> Seconds:
    """Seconds before every action that waited for its device alone.

    What it reads from other devices was there so long before the last action on its own ended.
    """
    program, start, end = timeline.program, timeline.start, timeline.end
    needs = program.dependencies
    source = program.origin[needs.producer]  # of a message, what computed it
    is_other = program.device_of[source] != program.device_of[needs.consumer]
    ready = np.full(len(program), -np.inf)
    np.maximum.at(ready, needs.consumer[is_other], end[source[is_other]])
    is_compute = program.is_on_compute[program.lane_of]
    first = np.flatnonzero((np.diff(program.lane_of) == 0) & is_compute[:-1])  # another follows
    first = first[ready[first + 1] + margin <= end[first]]
    return np.asarray(start[first + 1] - end[first])


def trimmed_mean(values: Sequence[float] | Seconds) -> float:
    """The mean without the largest and the least, as a rank may have been put aside."""
    cut = int(TRIMMED * len(values))
    middle = np.sort(values)[cut : len(values) - cut]
    return float(middle.mean()) if len(middle) else 0.0


class Resting(nn.Module):
    """Rests in F and in its backward, and passes on values of the given shapes."""

    def __init__(self, layout: Layout, seconds: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros((), device="cpu"))
        self._layout, self._seconds = layout, seconds

    def forward(self, *values: Tensor) -> Tensor | tuple[Tensor, ...]:
        made: tuple[Tensor, ...] = _Rest.apply(self.weight, self._layout, self._seconds, *values)  # type: ignore[no-untyped-call]
        return made[0] if len(made) == 1 else made


class _Rest(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, weight: Tensor, layout: Layout, seconds: float, *values: Tensor
    ) -> tuple[Tensor, ...]:
        time.sleep(seconds)
        context.seconds, context.read = seconds, layout_of((weight, *values))
        made = _zeros(layout, weight.device)
        context.mark_non_differentiable(*(one for one in made if not one.is_floating_point()))
        return made

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        time.sleep(context.seconds)
        weight, *values = _zeros(context.read, gradients[0].device)
        passed = (value if value.is_floating_point() else None for value in values)
        return weight, None, None, *passed


def _zeros(layout: Layout, device: torch.device) -> tuple[Tensor, ...]:
    return tuple(
        torch.zeros(entry.shape, dtype=entry.dtype, device=device)
        for entry in layout
        if isinstance(entry, TensorShape)
    )
