"""Fit: which programs run, on which modules, and what of them the executors run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from weft.errors import InputError
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.lower import unpaired
from weft.lower.periods import period_of
from weft.verify import check


def computed(program: Program) -> Program:
    """What the executors run, one action after the other: the rest follows from it."""
    if not (program.actions.kind <= Kind.R).all():
        program = _taking(program, [kind for kind in Kind if kind.is_compute])
    return unpaired(program)


def flowing(program: Program) -> Program:
    """What the runners of a program that does not flush run: computation and updates."""
    return unpaired(_taking(program, [Kind.F, Kind.B, Kind.R, Kind.UPDATE]))


def forwards_of(program: Program) -> Program:
    """The forwards alone, in their order."""
    return _taking(program, [Kind.F])


def first_step(program: Program) -> Program:
    """What belongs to the microbatches of the first step, without versions."""
    lanes = {}
    for lane, actions in program.contents().items():
        is_first = (actions.microbatch >= 0) & (actions.microbatch < program.microbatches)
        lanes[lane] = actions if is_first.all() else actions.take(np.flatnonzero(is_first))
    return program.with_lanes(lanes)


def _taking(program: Program, kinds: Sequence[Kind]) -> Program:
    """The compute lanes with these kinds alone."""
    lanes = {program.lanes[index]: int(index) for index in np.flatnonzero(program.is_on_compute)}
    rows = [
        np.flatnonzero(np.isin(program.actions.kind, kinds) & (program.lane_of == index))
        for index in lanes.values()
    ]
    contents = {}
    for lane, mine in zip(lanes, rows, strict=True):
        taken, is_whole = program.actions.take(mine), len(mine) == len(program.lane(lanes[lane]))
        contents[lane] = taken if is_whole else taken.replace(joined=0)
    place = np.repeat(np.arange(len(rows)), [*map(len, rows)])
    period = period_of(program, source=np.concatenate(rows), lane=place, lanes=len(rows))
    return program.with_lanes(contents, period=period)


def check_fit(stages: Sequence[nn.Module], program: Program) -> int:
    """Refuse, before the first action, what cannot run; the depth that its channels need."""
    report = check(program)
    if is_flowing(program):
        _check_flow(program)
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


def is_flowing(program: Program) -> bool:
    """Whether updates come between microbatches."""
    return program.period is not None or bool((program.actions.version > 0).any())


def _check_flow(program: Program) -> None:
    if program.period is None:
        raise InputError(
            f"{program.name} is too short to repeat, so it cannot run on and on; give it more"
            f" updates (updates={program.steps + 2 * program.devices})"
        )
    if np.isin(program.actions.kind, (Kind.I, Kind.W)).any():
        raise InputError(
            f"{program.name} does not flush and splits its backwards, which the runtime does not"
            f" do yet; use whole backwards"
        )
    if len(program.placement.pipes) > 1 or (program.actions.span > 1).any():
        raise InputError(f"{program.name} does not flush and has several pipes or spans")


def kind_of(stages: Sequence[nn.Module]) -> tuple[torch.dtype, torch.device]:
    """The type and device of the first weight."""
    for stage in stages:
        for weight in stage.parameters():
            return weight.dtype, weight.device
    return torch.get_default_dtype(), torch.device("cpu")
