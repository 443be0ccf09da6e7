"""Checks: what is refused before there is a program; whether it can run is for `verify` to say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weft.errors import InputError
from weft.ir.expert_groups import check_expert_groups
from weft.ir.lanes import Period

if TYPE_CHECKING:
    from weft.ir.program import Program


def refuse_malformed(program: Program) -> None:
    """Refuse a program whose parts do not belong together."""
    if len(program.graph) != program.placement.stages:
        raise InputError(
            f"{program.name}: the graph has {len(program.graph)} stages, the placement places"
            f" {program.placement.stages}"
        )
    if program.microbatches < 1 or len(program.pipe_of) != program.microbatches:
        raise InputError(f"{program.name}: every one of the microbatches belongs to a pipe")
    if program.parts < 1 or program.microbatches % program.parts:
        raise InputError(f"{program.name}: {program.parts} parts do not make whole microbatches")
    if set(program.pipe_of) - set(range(len(program.placement.pipes))):
        raise InputError(f"{program.name}: a microbatch names a pipe that the placement lacks")
    if not program.lanes:
        raise InputError(
            f"{program.name}: no lanes, so no device does anything. List the actions of each"
            " device in a lane"
        )
    if len(set(program.lanes)) != len(program.lanes):
        raise InputError(f"{program.name}: a lane is listed twice")
    ends = {lane.device for lane in program.lanes}
    ends |= {end for lane in program.lanes if lane.channel for end in lane.channel[:2]}
    if ends - set(range(program.devices)):
        raise InputError(f"{program.name}: a lane names a device that holds no stage")
    if program.period is not None:
        _check_period(program, program.period)
    program.sharing.check(program.name, program.stages)
    pipes = len(program.placement.pipes)
    check_expert_groups(program.name, program.expert_groups, program.pipe_of, pipes)


def _check_period(program: Program, period: Period) -> None:
    cuts = np.array([period.prologue, np.add(period.prologue, period.body)])
    if cuts.shape != (2, len(program.lanes)) or (cuts > np.diff(program.bounds)).any():
        raise InputError(f"{program.name}: a period gives every lane a prologue and a body in it")
    after = np.minimum(program.bounds[:-1] + cuts, len(program) - 1)
    if len(program) and (program.actions.joined[after] & (cuts < np.diff(program.bounds))).any():
        raise InputError(f"{program.name}: a period cuts no pair")
    if min(period.repeats, period.microbatches, *cuts.flat) < 0:
        raise InputError(f"{program.name}: a period counts from 0")
