"""Replicas: what a program does on its devices, again on others, and summed with them."""

from __future__ import annotations

import numpy as np
import pytest

from weft.errors import InputError
from weft.ir.kinds import Kind
from weft.lower import executable, replicated
from weft.schedules import REGISTRY, Schedule
from weft.simulate import simulate
from weft.verify import verify

every_schedule = pytest.mark.parametrize("schedule", [*REGISTRY], ids=lambda one: one.name)


@every_schedule
def test_a_replica_does_what_the_program_does_in_the_same_time(schedule: Schedule) -> None:
    program = schedule(devices=4, microbatches=8)
    both = replicated(program, 2)
    assert both.placement.replicas == 2
    assert verify(both).is_valid
    bare = [row for row in range(len(both)) if both.actions.kind[row] != Kind.REDUCE]
    assert len(bare) == 2 * int((program.actions.kind != Kind.REDUCE).sum())
    assert simulate(both).makespan == simulate(program).makespan


@every_schedule
def test_every_stage_is_summed_over_all_replicas(schedule: Schedule) -> None:
    program = executable(replicated(schedule(devices=2, microbatches=4), 3))
    assert verify(program).is_valid
    actions = program.actions
    pipes = len(program.placement.pipes)
    for stage in range(program.stages):
        mine = (actions.kind == Kind.REDUCE) & (actions.stage == stage) & (actions.version == 0)
        assert sorted(actions.pipe[mine]) == [*range(pipes)]


def test_microbatches_of_a_batch_go_to_the_replicas_one_after_another() -> None:
    program = replicated(REGISTRY["1f1b"](devices=2, microbatches=3), 2)
    forwards = program.actions.kind == Kind.F
    for replica, numbers in enumerate(([0, 1, 2], [3, 4, 5])):
        mine = forwards & (program.device_of // 2 == replica)
        assert np.unique(program.actions.microbatch[mine]).tolist() == numbers


def test_no_replicas_are_refused() -> None:
    with pytest.raises(InputError, match="use 1 or more"):
        replicated(REGISTRY["1f1b"](devices=2, microbatches=2), 0)
