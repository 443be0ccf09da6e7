"""The central comparison: a program's training against the reference's, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.runtime.models import MODELS, Data, adam, squared
from weft.ir.program import Program
from weft.runtime import Pipeline, Reference, Stages
from weft.timeline import Timeline


def differences(
    stages: Sequence[nn.Module], program: Program, data: Data, **settings: Any
) -> list[str]:
    """Train the stages by the program and copies of them by the reference; what is not equal."""
    copies = copy.deepcopy(Stages.of(stages))
    shared = {"loss": squared, "optimizer": adam, "seed": 3, **settings}
    weights = shared.pop("weights", None)
    own = {name: shared.pop(name) for name in ("transport", "graphs") if name in shared}
    pipeline = Pipeline(stages, program, **own, **shared)
    reference = Reference(copies, program, **shared)
    found = []
    for step, (batch, target) in enumerate(data):
        result = pipeline.step(batch, target, weights=weights)
        if not torch.equal(result.loss, reference.step(batch, target, weights=weights)):
            found.append(f"the loss of step {step}")
        if not is_in_order(pipeline.gathered(result)):
            found.append(f"the order of step {step}")
    for (pipe, index), module in pipeline.modules.items():
        wanted = copies[index].state_dict()
        for name, value in module.state_dict().items():
            if not torch.equal(value, wanted[name]):
                found.append(f"{name} of stage {index} on pipe {pipe}")
    return found


def is_in_order(timeline: Timeline, tolerance: float = 0.0) -> bool:
    """Nothing started before what it reads had ended, whichever rank computed it.

    What another rank or thread reads may be read there before its own has noted that it has ended.
    """
    dependencies, lane_of = timeline.program.dependencies, timeline.program.lane_of
    producer, consumer = dependencies.producer, dependencies.consumer
    is_elsewhere = lane_of[producer] != lane_of[consumer]
    known = np.where(is_elsewhere, timeline.start[producer], timeline.end[producer])
    is_after = timeline.start[consumer] >= known - tolerance
    return bool(is_after.all() and timeline.start.min() == 0)


def differences_of(model: str, program: Program, *, steps: int = 2, **settings: Any) -> list[str]:
    """The same for one of the small models, with clipping and a short last microbatch."""
    stages, data, loss = MODELS[model]
    rows = program.microbatches * 3 - 1
    settings = {"clip": 0.5, "loss": loss, **settings}
    return differences(stages(program.stages), program, data(rows, steps), **settings)
