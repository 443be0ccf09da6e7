"""Phases: warm-up, steady state and cool-down of a device, an excerpt of each."""

from __future__ import annotations

import pytest

from tests.cli.running import refused, weft
from weft.draw.phases import phases
from weft.draw.window import Window
from weft.schedules import REGISTRY, gpipe, one_f_one_b
from weft.simulate import simulate


def test_the_phases_of_1f1b() -> None:
    timeline = simulate(one_f_one_b(devices=4, microbatches=8))
    assert phases(timeline, 0) == {
        "warm-up": Window(0, 3),  # of F0 F1 F2 F3
        "steady": Window(12, 21),  # of F4 B1 F5 B2 F6 B3 F7 B4
        "cool-down": Window(22, 31),  # of B4 B5 B6 B7
    }
    assert phases(timeline, 3)["warm-up"] == Window(3, 4)


def test_a_phase_that_a_device_lacks_is_left_out() -> None:
    timeline = simulate(gpipe(devices=2, microbatches=4))
    assert list(phases(timeline, 0)) == ["warm-up", "cool-down"]


@pytest.mark.parametrize("name", [schedule.name for schedule in REGISTRY])
def test_phases_lie_within_the_timeline(name: str) -> None:
    program = REGISTRY[name](devices=4, microbatches=8)
    timeline = simulate(program.unrolled() if program.period else program)
    for device in range(4):
        for window in phases(timeline, device).values():
            assert 0 <= window.start < window.end <= timeline.makespan


def test_they_are_asked_for_alone() -> None:
    refused(weft("draw", "1f1b", "--phases", "0", "--only", "1"), "leave out --only")
    refused(weft("draw", "1f1b", "--phases", "0", "--window", "0:9"), "leave out --window")
    refused(weft("draw", "1f1b", "--phases", "9"), "there is no device 9")
    refused(weft("draw", "1f1b", "--phases", "0", "-o", "x.html"), "leave out --phases")
