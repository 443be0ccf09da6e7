"""Fit: which programs run, on which modules, and what of them the executors run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from weft.errors import InputError
from weft.ir.kinds import Kind, Stream
from weft.ir.program import Program
from weft.lower import unpaired
from weft.verify import check


def computed(program: Program) -> Program:
    """What the executors run, one action after the other: the rest follows from it."""
    if not (program.actions.kind <= Kind.R).all():
        program = _taking(program, [kind for kind in Kind if kind.is_compute])
    return unpaired(program)


def forwards_of(program: Program) -> Program:
    """The forwards alone, in their order."""
    return _taking(program, [Kind.F])


def _taking(program: Program, kinds: Sequence[Kind]) -> Program:
    """The compute lanes with these kinds alone."""
    lanes = {}
    for lane, actions in program.contents().items():
        if lane.stream is Stream.COMPUTE:
            taken = actions.take(np.flatnonzero(np.isin(actions.kind, kinds)))
            lanes[lane] = taken.replace(joined=0) if len(taken) < len(actions) else taken
    return program.with_lanes(lanes)


def check_fit(stages: Sequence[nn.Module], program: Program) -> int:
    """Refuse, before the first action, what cannot run; the depth that its channels need."""
    report = check(program)
    if program.period is not None or (program.actions.version >= 0).any():
        raise InputError(f"{program.name} does not flush; asynchronous runs come later")
    if np.isin(program.actions.kind, (Kind.OFFLOAD, Kind.ONLOAD)).any():
        raise InputError(f"{program.name} offloads, which the runtime does not do yet")
    if any(stage.is_whole_batch for stage in program.graph.stages):
        raise InputError(
            f"{program.name} has a stage that reads the whole batch at once, which the runtime"
            f" does not do yet: it runs one microbatch after the other"
        )
    if len(stages) != program.stages:
        raise InputError(f"{len(stages)} modules for the {program.stages} stages of {program.name}")
    if len([s for s in program.graph.successors if not s]) != 1:
        raise InputError(f"{program.name} has several last stages; join them in one")
    return report.channel_depth or 0


def kind_of(stages: Sequence[nn.Module]) -> tuple[torch.dtype, torch.device]:
    """The type and device of the first weight."""
    for stage in stages:
        for weight in stage.parameters():
            return weight.dtype, weight.device
    return torch.get_default_dtype(), torch.device("cpu")
