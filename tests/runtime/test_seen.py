"""What a run shows of itself: when each action began and ended, on one clock for all ranks."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
import torch.distributed as dist
from torch import Tensor, nn

from tests.runtime.exactness import is_in_order
from tests.runtime.models import WIDTH, batches, linear, squared
from tests.runtime.namespaces import need_other_clocks, shift_clock
from tests.runtime.ranks import run
from weft.draw import plain, to_perfetto
from weft.ir.actions import Action
from weft.ir.kinds import Kind
from weft.notation import from_json, to_json
from weft.runtime import Pipeline
from weft.schedules import one_f_one_b
from weft.simulate import simulate
from weft.timeline import Timeline

PROGRAM = one_f_one_b(devices=4, microbatches=8)


# a clock that the test sets


class Clock:
    """Stops unless somebody works."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


class Working(nn.Module):
    """Takes 10 ms, and `more` once, for the sixth microbatch."""

    def __init__(self, clock: Clock, more: float) -> None:
        super().__init__()
        self.line, self.clock, self.more, self.calls = nn.Linear(WIDTH, WIDTH), clock, more, 0

    def forward(self, value: Tensor) -> Tensor:
        if not value.is_meta:
            self.clock.now += 0.01 + self.more * (self.calls == 5)
            self.calls += 1
        out: Tensor = self.line(value)
        return out


def measured(monkeypatch: pytest.MonkeyPatch, more: float) -> Timeline:
    clock = Clock()
    monkeypatch.setattr("weft.runtime.ranks.clock.time", clock)
    stages = [Working(clock, more if index == 2 else 0.0) for index in range(4)]
    ((batch, target),) = batches(16, 1)
    return Pipeline(stages, PROGRAM, loss=squared).step(batch, target).timeline


def test_a_stage_that_takes_50_ms_longer_once_is_seen_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly that action, by exactly that much."""
    usual, slow = measured(monkeypatch, 0.0), measured(monkeypatch, 0.05)
    longer = (slow.end - slow.start) - (usual.end - usual.start)
    actions = slow.program.actions
    expected = [0.05 if action == Action(2, Kind.F, 5) else 0.0 for action in actions]
    assert np.allclose(longer, expected, rtol=0, atol=1e-9)
    assert np.count_nonzero(expected) == 1


# clocks of several ranks

SHIFT = 1000


def shifted(rank: int) -> None:
    if rank == 1:
        shift_clock(SHIFT)


def gathered() -> tuple[float, str]:
    """In each rank: its clock, and the timeline of all."""
    pipeline = Pipeline(linear(2), one_f_one_b(devices=2, microbatches=4), loss=squared)
    ((batch, target),) = batches(8, 1)
    timeline = pipeline.gathered(pipeline.step(batch, target))
    dist.barrier()
    return time.perf_counter(), to_json(timeline)


def test_clocks_of_ranks_are_set_alike() -> None:
    """One rank's clock is 1000 s ahead, as after another boot; no action is off by a second."""
    need_other_clocks()
    (one, first), (other, second) = run(2, gathered, enter=shifted)
    assert abs(other - one - SHIFT) < 100
    assert first == second
    timeline = from_json(first)
    assert isinstance(timeline, Timeline)
    assert is_in_order(timeline, tolerance=1.0)
    assert timeline.makespan < 100


# pictures


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    ((batch, target),) = batches(16, 1)
    return Pipeline(linear(4), PROGRAM, loss=squared).step(batch, target).timeline


def test_a_measured_timeline_is_drawn(timeline: Timeline) -> None:
    title, *rows = plain(timeline, width=100).splitlines()
    assert title == plain(simulate(timeline.program), width=100).splitlines()[0]
    for device in range(4):
        assert rows[device].startswith(f"{device} ")
        assert {"F", "B"} & set(rows[device])


def test_a_measured_timeline_is_exported_to_perfetto(timeline: Timeline) -> None:
    kinds = []
    for one in (timeline, simulate(timeline.program)):
        events = json.loads(to_perfetto(one))["traceEvents"]
        kinds.append(sorted((e["ph"], e["name"], e["pid"]) for e in events if e["ph"] == "X"))
    assert kinds[0] == kinds[1]
    assert len(kinds[0]) == len(timeline.program)


def test_a_measured_timeline_is_written_and_read(timeline: Timeline) -> None:
    again = from_json(to_json(timeline))
    assert isinstance(again, Timeline)
    assert again.is_measured
    assert again.program == timeline.program
    assert np.array_equal(again.start, timeline.start)
    assert np.array_equal(again.end, timeline.end)
