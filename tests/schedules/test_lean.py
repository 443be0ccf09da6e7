"""V-Half, V-Min, Hanayo and Chimera's variants: golden rows, grids, claims, and their kit."""

from __future__ import annotations

import csv
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from weft.cost import Share
from weft.errors import InputError, ProgramError, ShapeError
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.schedules.chimera import chimera
from weft.schedules.hanayo import hanayo
from weft.schedules.kit.building_block import Block, repeated
from weft.schedules.kit.list_order import list_order
from weft.schedules.kit.orders import breadth_first
from weft.schedules.kit.schedule import Schedule
from weft.schedules.kit.shape import Shape
from weft.schedules.kit.squeeze import squeezed
from weft.schedules.v_half import v_half
from weft.schedules.v_min import v_min
from weft.simulate import simulate
from weft.timeline import Timeline
from weft.timeline.memory import Category
from weft.verify import check

Row = dict[str, str]

FILE = Path(__file__).parents[1] / "golden" / "sync.csv"
SCHEDULES = {"v_half": v_half, "v_min": v_min, "hanayo": hanayo, "chimera": chimera}
VARIANTS = {"forward doubling": "doubling", "backward halving": "halving"}
DEVICES, MICROBATCHES = range(2, 9), range(1, 25)


def _rows(*names: str) -> list[Row]:
    with FILE.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["row_type"] == "schedule"]
    return [
        row
        for row in rows
        if row["schedule"] in names and (row["schedule"] != "chimera" or row["variant"] in VARIANTS)
    ]


def _label(row: Row) -> str:
    size = "x".join(row[key] for key in "DNK")
    return f"{row['schedule']}-{row['variant'][:3]}-{size}-{row['tB']}-{row['tW']}"


def _timeline(row: Row) -> Timeline:
    shape = Shape(
        devices=int(row["D"]),
        microbatches=int(row["N"]),
        stages_per_device=int(row["K"]),
        variant=VARIANTS.get(row["variant"], ""),
    )
    program = SCHEDULES[row["schedule"]].program(shape)
    share = Share(float(row["tF"]), float(row["tI"]), float(row["tW"]))
    return simulate(program, share.cost(program))


def _peaks(timeline: Timeline) -> list[float]:
    """In ordinary microbatches, whatever parts they are cut into."""
    return [curves[Category.ACTIVATIONS].peak for curves in timeline.memory.curves]


# golden rows


@pytest.mark.parametrize("row", _rows("v_half", "hanayo"), ids=_label)
def test_golden_row_exactly(row: Row) -> None:
    timeline = _timeline(row)
    assert timeline.makespan == pytest.approx(float(row["makespan"]), rel=0, abs=1e-9)
    span = float(row["longest_device_span"])
    assert timeline.device_spans.max() == pytest.approx(span, rel=0, abs=1e-9)
    wall = float(Fraction(row["bubble_area_exact"]))
    assert timeline.bubble.wall == pytest.approx(wall, rel=0, abs=1e-9)
    assert timeline.bubble.span == pytest.approx(float(row["bubble_span"]), abs=5e-7)
    peaks = [float(peak) for peak in row["peak_act_per_device"].split()]
    assert _peaks(timeline) == pytest.approx(peaks, rel=0, abs=1e-9)
    assert timeline.program.messages == int(row["p2p_msgs"])
    assert timeline.program.placement.weight_copies == float(row["weight_copies"])


# Where ours end sooner than the golden order, at no higher peak on any device.
SOONER = {
    "v_min--4x8x2-2-1": 29.5,
    "v_min--8x32x2-2-1": 107.5,
    "v_min--4x8x2-17-7": 290.5,
    "v_min--4x16x2-17-7": 530.5,
    "v_min--8x16x2-17-7": 589.0,
    "v_min--8x32x2-17-7": 1069.0,
    "chimera-for-8x16x1-2-1": 60,
    "chimera-for-8x32x1-2-1": 108,
    "chimera-bac-4x8x1-2-1": 26,
    "chimera-bac-8x8x1-2-1": 30,
    "chimera-bac-8x16x1-2-1": 54,
}


@pytest.mark.parametrize("row", _rows("v_min", "chimera"), ids=_label)
def test_golden_row_or_better(row: Row) -> None:
    timeline = _timeline(row)
    assert timeline.makespan == SOONER[_label(row)] <= float(row["makespan"])
    peaks = [float(peak) for peak in row["peak_act_per_device"].split()]
    assert all(a <= b for a, b in zip(_peaks(timeline), peaks, strict=True))
    assert timeline.program.messages == int(row["p2p_msgs"] or timeline.program.messages)
    assert timeline.program.placement.weight_copies == float(row["weight_copies"])


def test_no_golden_row_is_left_out() -> None:
    assert len(_rows("v_half", "hanayo")) == 25
    assert len(_rows("v_min", "chimera")) == len(SOONER)


# every shape


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize(
    ("schedule", "turns"),
    [(v_half, 2), (v_min, 2), (hanayo, 2), (hanayo, 4)],
    ids=["v-half", "v-min", "hanayo-2", "hanayo-4"],
)
def test_every_shape_ends_within_its_peak(schedule: Schedule, turns: int, devices: int) -> None:
    for microbatches in MICROBATCHES:
        shape = Shape(devices=devices, microbatches=microbatches, stages_per_device=turns)
        timeline = simulate(schedule.program(shape))
        claimed = [schedule.claims.peak(shape, device) for device in range(devices)]
        assert (np.array(timeline.peak_activations) <= np.array(claimed) + 1e-9).all(), shape


@pytest.mark.parametrize(
    ("schedule", "shape"),
    [
        (v_half, {"devices": 1, "microbatches": 3}),
        (v_half, {"devices": 5, "microbatches": 2}),
        (v_half, {"devices": 4, "microbatches": 9}),
        (v_min, {"devices": 6, "microbatches": 7}),
        (v_min, {"devices": 3, "microbatches": 12}),
        (hanayo, {"devices": 3, "microbatches": 7, "stages_per_device": 4}),
        (chimera, {"devices": 4, "microbatches": 16, "variant": "doubling"}),
        (chimera, {"devices": 8, "microbatches": 8, "variant": "halving", "pipes": 2}),
    ],
)
def test_programs_are_valid(schedule: Schedule, shape: dict[str, object]) -> None:
    assert check(schedule(**shape)).is_valid


# claims

SHARES = [Share(1, 1, 1), Share(1, 0.5, 0.5), Share(10, 10, 7), Share(10, 8, 5), Share(2, 3, 1)]


@pytest.mark.parametrize("share", SHARES, ids=str)
@pytest.mark.parametrize("schedule", [v_half, v_min, hanayo, chimera], ids=lambda s: s.name)
def test_claims_hold(schedule: Schedule, share: Share) -> None:
    least = schedule.stages_per_device[0]
    shapes = [
        Shape(devices=d, microbatches=n, stages_per_device=k, variant=variant)
        for d, n, k, variant in product(
            (1, *DEVICES), MICROBATCHES, {least, 4}, ("", *schedule.variants)
        )
    ]
    for shape in shapes:
        if schedule.accepts(shape) or not schedule.claims.holds(shape, share):
            continue
        program = schedule.program(shape)
        timeline = simulate(program, share.cost(program))
        assert timeline.makespan == pytest.approx(schedule.claims.seconds(shape, share)), shape
        peaks = [schedule.claims.peak(shape, device) for device in range(shape.devices)]
        assert timeline.peak_activations == pytest.approx(peaks), shape
        assert program.placement.weight_copies == schedule.claims.weight_copies(shape)


@pytest.mark.parametrize(
    ("schedule", "shape", "reason", "nearest"),
    [
        (hanayo, {"stages_per_device": 3}, "even number of stages", "4 stages per device"),
        (hanayo, {"stages_per_device": 1}, "at least 2 stages", "2 stages per device"),
        (v_min, {"stages_per_device": 4}, "exactly 2 stages", "2 stages per device"),
        (chimera, {"variant": "doubling", "microbatches": 12}, "of 2D", "16 microbatches"),
        (chimera, {"variant": "halving", "microbatches": 6}, "multiple of D", "8 microbatches"),
    ],
)
def test_refusals_name_the_reason_and_the_nearest(
    schedule: Schedule, shape: dict[str, object], reason: str, nearest: str
) -> None:
    with pytest.raises(ShapeError) as caught:
        schedule(**{"devices": 4, "microbatches": 8} | shape)
    assert reason in str(caught.value)
    assert nearest in str(caught.value)


# the kit


def _v_of_four() -> Program:
    """The shortest block on four devices: no microbatch ever waits."""
    blocks = [Block(device, 7 - device, 8 + device, 15 - device) for device in range(4)]
    return repeated("v", blocks, microbatches=8)


# Exact search (the golden file's cpsat rows) finds the same for D = 4, N = 8.
@pytest.mark.parametrize(("peak", "optimum"), [(2, 29.5), (3, 26.5), (4, 25.5)])
def test_squeezing_reaches_the_optimum_at_each_peak(peak: int, optimum: float) -> None:
    program = _v_of_four()
    before, after = simulate(program), simulate(squeezed(program, peak=lambda *_: peak))
    assert after.makespan == optimum <= before.makespan
    assert max(after.peak_activations) <= peak


def test_a_list_order_needs_room() -> None:
    placement = Placement.wave(2)
    lanes = [breadth_first(device, placement, 2) for device in range(2)]
    program = Program.build("wave", placement, lanes, microbatches=2)
    assert simulate(list_order(program, peak=2)).makespan == 8
    with pytest.raises(ProgramError, match="no list order within 0"):
        list_order(program, peak=0)


def test_halves_cost_half() -> None:
    program = chimera(devices=4, microbatches=8, variant="halving")
    assert (program.microbatches, program.parts) == (16, 2)
    assert program.with_lanes(program.contents()).parts == 2
    assert set(Share().cost(program).sizes) == {0.5}
    assert simulate(program).device_work.tolist() == [24] * 4


def test_parts_make_whole_microbatches() -> None:
    placement = Placement.straight(1)
    with pytest.raises(InputError, match="whole microbatches"):
        Program.build("odd", placement, [[]], microbatches=3, parts=2)
