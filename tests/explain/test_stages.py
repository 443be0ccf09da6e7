"""What shorter work at a single stage would bring."""

from __future__ import annotations

from dataclasses import replace

from weft.cost import Share
from weft.explain import helps
from weft.schedules import one_f_one_b
from weft.simulate import simulate


def test_all_work_of_the_slowest_stage_helps_most() -> None:
    program = one_f_one_b(devices=4, microbatches=16)
    cost = Share().cost(program)
    slow = replace(cost.times, forward=(1.0, 3.0, 1.0, 1.0))
    best = helps(simulate(program, replace(cost, times=slow)))[0]
    assert (best.kind.name, best.stage) == ("F", 1)
    assert 12 * 0.3 < best.seconds <= 16 * 0.3 + 1e-9  # but for some of the warm-up
