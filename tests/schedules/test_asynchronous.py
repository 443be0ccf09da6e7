"""The asynchronous family: orders, versions, run time, steady state."""

from __future__ import annotations

import pytest

from weft.cost import Share
from weft.errors import ShapeError
from weft.ir.kinds import Kind
from weft.ir.versions import resident_versions, staleness
from weft.notation import plain
from weft.schedules import (
    REGISTRY,
    Schedule,
    Shape,
    naive_async,
    pipedream,
    pipedream_2bw,
    wpipe,
)
from weft.simulate import simulate, steady
from weft.verify import verify

FAMILY = [naive_async, pipedream, pipedream_2bw, wpipe]

# WPipe on 4 devices, 4 microbatches per update, as the paper's code orders it (prime = group 1).
WPIPE = """\
F0 F1 F2 F3 F0' F1' F2' F3' B0' F4 B1' F5 B2' F6 B3' U0' F7 B0 F4' B1 F5' B2 F6' B3 U0 F7' B4' F8
F0 F1 F2 F3 F0' F1' F2' B0' F3' B1' F4 B2' F5 B3' U0' F6 B0 F7 B1 F4' B2 F5' B3 U0 F6' B4'
F0 F1 F2 F3 F0' F1' B0' F2' B1' F3' B2' F4 B3' U0' F5 B0 F6 B1 F7 B2 F4' B3 U0 F5' B4'
F0 F1 F2 F3 F0' B0' F1' B1' F2' B2' F3' B3' U0' F4 B0 F5 B1 F6 B2 F7 B3 U0 F4' B4' F5' B5'"""


def shapes(schedule: Schedule, updates: int) -> list[Shape]:
    """D in 2 ... 8, several n, every variant: those that are accepted."""
    found = []
    for devices in range(2, 9):
        for microbatches in sorted({devices - 1, devices, 2 * devices, 2 * devices - 2, 12}):
            for variant in ("", *schedule.variants):
                for size in {0, 2 * devices - 2} if schedule.takes_round else {0}:
                    shape = Shape(
                        devices=devices,
                        microbatches=microbatches,
                        updates=updates,
                        variant=variant,
                        round=size,
                        stages_per_device=schedule.stages_per_device[0],
                    )
                    if schedule.accepts(shape) is None:
                        found.append(shape)
    return found


def test_wpipe_runs_in_the_order_that_is_printed() -> None:
    program = wpipe(devices=4, microbatches=4, updates=4).unrolled()
    for line, printed in zip(plain(program).splitlines(), WPIPE.splitlines(), strict=True):
        assert line.startswith(printed)


def _expected_versions(schedule: Schedule, shape: Shape) -> tuple[list[int], list[int]]:
    """Resident versions and staleness of each stage after start-up."""
    ends = [shape.devices - 1 - stage for stage in range(shape.devices)]
    match schedule.name, shape.variant:
        case "naive-async", _:
            return [1] * shape.devices, ends
        case "pipedream", "vertical-sync":
            return [shape.devices] * shape.devices, [shape.devices - 1] * shape.devices
        case "pipedream", _:
            return [end + 1 for end in ends], ends
        case "pipedream-2bw", _:
            return [2] * shape.devices, [1] * shape.devices
        case _:
            groups = [2] * shape.devices + [1] * shape.devices
            return groups, [versions - 1 for versions in groups]


@pytest.mark.parametrize("schedule", FAMILY, ids=lambda schedule: schedule.name)
def test_versions_and_staleness(schedule: Schedule) -> None:
    for shape in shapes(schedule, updates=9):
        program = schedule.program(shape).unrolled()
        residents, stale = _expected_versions(schedule, shape)
        assert staleness(program) == stale, shape
        assert resident_versions(program) == residents, shape


def test_resident_weights_are_held_in_memory() -> None:
    program = pipedream(devices=4, microbatches=8).unrolled()
    assert simulate(program).memory.peaks == [4 + 4, 3 + 3, 2 + 2, 1 + 1]
    program = pipedream_2bw(devices=4, microbatches=8).unrolled()
    assert simulate(program).memory.peaks == [2 + 4, 2 + 3, 2 + 2, 2 + 1]
    program = wpipe(devices=4, microbatches=8).unrolled()
    assert simulate(program).memory.peaks[0] == 1.5 + 4


@pytest.mark.parametrize("schedule", FAMILY, ids=lambda schedule: schedule.name)
def test_a_folded_run_unrolls_to_the_run_written_out(schedule: Schedule) -> None:
    """Fold and unfold: a longer run begins as a shorter one, and repeats what it says."""
    for shape in shapes(schedule, updates=3 * 8 + 1)[::5]:
        folded = schedule.program(shape)
        assert folded.period is not None
        assert len(folded) < len(folded.unrolled())
        assert verify(folded).is_valid, shape
        flat = folded.unrolled()
        each = [
            (action.stage, action.kind, action.microbatch)
            for action in flat.actions
            if action.kind in (Kind.F, Kind.B)
        ]
        assert len(set(each)) == len(each)
        if schedule.claims.holds(shape, Share()):
            seconds = schedule.claims.seconds(shape, Share())
            assert simulate(flat).makespan == pytest.approx(seconds)


@pytest.mark.parametrize("schedule", FAMILY, ids=lambda schedule: schedule.name)
def test_every_stage_ends_with_every_update(schedule: Schedule) -> None:
    for shape in shapes(schedule, updates=5)[::3]:
        program = schedule.program(shape).unrolled()
        updates = [action for action in program.actions if action.kind is Kind.UPDATE]
        runs = shape.updates * (shape.microbatches if program.microbatches == 1 else 1)
        for stage in range(program.stages):
            assert [a.version for a in updates if a.stage == stage] == list(range(runs))


@pytest.mark.parametrize("schedule", FAMILY, ids=lambda schedule: schedule.name)
def test_no_bubble_once_settled(schedule: Schedule) -> None:
    """But for WPipe with rounds of D - 1, which claims less."""
    for shape in shapes(schedule, updates=3 * 8)[::4]:
        if not schedule.claims.holds(shape, Share()):
            continue
        program = schedule.program(shape)
        settled = steady(program)
        assert settled.bubble == pytest.approx(0), shape
        assert settled.period == pytest.approx(3 * program.microbatches)


@pytest.mark.parametrize("latency", [0.1, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("devices", [2, 4, 6])
def test_latency_laws(devices: int, latency: float) -> None:
    """Utilisation D(f+b)/(D(f+b) + 2(D-1)c) of 2BW, 4(D-1)c of WPipe."""
    share = Share(latency=latency)
    for schedule, hops in ((pipedream_2bw, 2), (wpipe, 4)):
        program = schedule(devices=devices, microbatches=2 * devices, updates=8)
        settled = steady(program, share.cost(program))
        work = devices * 3
        expected = work / (work + hops * (devices - 1) * latency)
        assert 1 - settled.bubble == pytest.approx(expected)


def test_eager_hides_latency_up_to_its_bound() -> None:
    """Eager 2BW hides a latency of (f+b)/2, eager WPipe of (f+b)/4 (D = 4)."""
    for schedule, bound, more in ((pipedream_2bw, 1.5, {}), (wpipe, 0.75, {"round": 8})):
        program = schedule(devices=4, microbatches=8, variant="eager", updates=12, **more)
        for latency, is_hidden in ((bound, True), (bound * 1.1, False)):
            settled = steady(program, Share(latency=latency).cost(program))
            assert (settled.bubble == pytest.approx(0)) is is_hidden


def test_the_period_is_the_average_of_a_cycle() -> None:
    """2BW on 4 devices, 5 microbatches, latency 0.1 repeats 15.6, 15.8, 15.8, 15.8."""
    program = pipedream_2bw(devices=4, microbatches=5, updates=8)
    settled = steady(program, Share(latency=0.1).cost(program))
    assert settled.period == pytest.approx((15.6 + 3 * 15.8) / 4)


@pytest.mark.parametrize(
    ("name", "shape", "bound"),
    [
        ("pipedream-2bw", {"devices": 4, "microbatches": 2}, "n >= D - 1"),
        ("pipedream-2bw", {"devices": 4, "microbatches": 5, "variant": "eager"}, "2 (D - 1)"),
        ("wpipe", {"devices": 4, "microbatches": 4, "round": 2}, "R >= D - 1"),
        ("wpipe", {"devices": 4, "microbatches": 8, "variant": "eager"}, "R >= 2 (D - 1)"),
        ("wpipe", {"devices": 4, "microbatches": 2}, "divides"),
        ("wpipe", {"devices": 4, "microbatches": 8, "round": 3}, "divides"),
        ("pipedream", {"devices": 4, "microbatches": 8, "round": 4}, "no round"),
    ],
)
def test_below_the_bound_a_shape_is_refused(
    name: str, shape: dict[str, object], bound: str
) -> None:
    with pytest.raises(ShapeError) as caught:
        REGISTRY[name](**shape)
    assert bound in str(caught.value)
    assert "Nearest that works" in str(caught.value)


def test_the_round_defaults_to_the_devices_or_the_least_divisor() -> None:
    for microbatches, size in ((8, 4), (6, 3), (5, 5), (9, 3)):
        default = wpipe(devices=4, microbatches=microbatches)
        assert default == wpipe(devices=4, microbatches=microbatches, round=size)


@pytest.mark.parametrize("microbatches", [1, 2])
def test_2bw_below_its_bound_would_need_a_third_version(microbatches: int) -> None:
    """Why it is refused: with n < D - 1 a forward would use weights that do not exist yet."""
    shape = Shape(devices=4, microbatches=microbatches)
    assert not verify(pipedream_2bw.generate(shape)).is_valid
