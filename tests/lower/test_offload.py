"""The offload pass: golden peaks, what stays, what fits, and the recompute pass beside it."""

from __future__ import annotations

import csv
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from weft.cost import Cost, Link, Share
from weft.errors import InputError
from weft.ir.kinds import Kind, Stream
from weft.ir.program import Program
from weft.lower import offload, recompute, recompute_early, updates, wires
from weft.notation import plain
from weft.schedules import REGISTRY, gpipe, kimi_k2, one_f_one_b, zb_h1
from weft.simulate import simulate
from weft.timeline import Category, Timeline
from weft.verify import verify

Row = dict[str, str]

FILE = Path(__file__).parents[1] / "golden" / "sync.csv"


def _rows() -> list[Row]:
    with FILE.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["row_type"] == "offload_model"]


def _label(row: Row) -> str:
    return f"{row['schedule']}-{row['D']}-{row['variant'][8:17]}-{_copy(row)}"


def _copy(row: Row) -> Fraction:
    """One-way copy as a fraction of F + B."""
    return Fraction(row["variant"].rpartition("= ")[2].removesuffix(" of (F+B)"))


def _cost(program: Program, copy: float) -> Cost:
    """Unit costs; the state of a device's share takes `copy` seconds each way."""
    unit = Share().cost(program)
    return replace(unit, network=replace(unit.network, host=Link(bandwidth=1 / copy)))


def _offloaded(timeline: Timeline, device: int) -> int:
    program = timeline.program
    is_here = program.device_of == device
    return int((is_here & (program.actions.kind == Kind.OFFLOAD)).sum())


ROWS = _rows()


def test_the_golden_file_has_not_shrunk() -> None:
    assert len(ROWS) == 27


@pytest.mark.parametrize("row", ROWS, ids=_label)
def test_golden_row(row: Row) -> None:
    devices = int(row["D"])
    program = REGISTRY[row["schedule"].replace("_", "-")](
        devices=devices, microbatches=int(row["N"]), stages_per_device=int(row["K"])
    )
    cost = _cost(program, 3 * float(_copy(row)))
    stages = range(devices) if "chunk 0" in row["variant"] else None
    away = simulate(offload(simulate(program, cost), stages=stages), cost)
    assert verify(away.program).is_valid
    assert away.makespan == float(row["makespan"])
    assert away.memory.curves[0][Category.ACTIVATIONS].peak == float(row["peak_act_max"])
    counted = row["notes"].rpartition("; ")[2].split()[0]
    assert _offloaded(away, 0) == int(counted)


def test_the_last_stage_never_offloads() -> None:
    """Reuse distance 1: the copies there and back could not both fit."""
    program = kimi_k2(devices=4, microbatches=8, stages_per_device=2, variant="send-after-w")
    lowered = offload(simulate(program, _cost(program, 1e-6)))
    stages = {action.stage for action in lowered.actions if action.kind is Kind.OFFLOAD}
    assert stages == set(range(7))


def test_bytes_are_bounded_and_the_longest_lived_go_first() -> None:
    program = one_f_one_b(devices=4, microbatches=8)
    timeline = simulate(program, _cost(program, 0.25))
    for most, expected in ((0, 0), (1, 1), (2, 2), (100, 3)):
        lowered = offload(timeline, most=most)
        away = simulate(lowered, timeline.cost)
        peak = away.memory.curves[0][Category.ACTIVATIONS].peak
        assert 4 - peak <= expected
        assert verify(lowered).is_valid
    full = replace(timeline.cost, memory=replace(timeline.cost.memory, host_capacity=0.0))
    for nothing in (offload(timeline, most=0), offload(simulate(program, full))):
        assert not any(lane.stream is Stream.OFFLOAD for lane in nothing.lanes)


def test_offloading_delays_nothing_and_lowers_no_time() -> None:
    for name in ("gpipe", "1f1b", "interleaved-1f1b", "zbv", "dualpipev", "kimi-k2"):
        schedule = REGISTRY[name]
        program = schedule(
            devices=4, microbatches=8, stages_per_device=schedule.stages_per_device[0]
        )
        cost = _cost(program, 0.75)
        before = simulate(program, cost)
        after = simulate(wires(updates(offload(before))), cost)
        assert after.makespan == pytest.approx(before.makespan)
        assert verify(after.program).is_valid
        assert max(after.memory.peaks) <= max(before.memory.peaks)


def test_what_offloads_already_is_refused() -> None:
    program = gpipe(devices=2, microbatches=4)
    timeline = simulate(program, _cost(program, 0.1))
    with pytest.raises(InputError, match="already"):
        offload(simulate(offload(timeline), timeline.cost))
    with pytest.raises(InputError, match="stages 0 to 1"):
        offload(timeline, stages=[7])


def test_recomputation_stands_in_front_of_the_backward() -> None:
    program = gpipe(devices=1, microbatches=2)
    assert plain(recompute(program)) == "F0 F1 R0|B0 R1|B1"
    assert plain(recompute_early(program)) == "F0 F1 R0 B0 R1 B1"


def test_recomputing_some_stages() -> None:
    program = recompute(zb_h1(devices=4, microbatches=8), stages=[0, 1])
    assert verify(program).is_valid
    unit = Share().cost(program)
    cost = replace(unit, memory=replace(unit.memory, inputs=(0.125,) * 4))
    peaks = simulate(program, cost).memory.peaks
    assert peaks[0] < 4 < peaks[3]


def test_a_backward_in_a_pair_is_recomputed_in_front_of_it() -> None:
    program = recompute(kimi_k2(devices=2, microbatches=4, stages_per_device=2))
    assert verify(program).is_valid
    assert (
        simulate(program).makespan
        > simulate(kimi_k2(devices=2, microbatches=4, stages_per_device=2)).makespan
    )


def test_only_once() -> None:
    with pytest.raises(InputError, match="already"):
        recompute(recompute(gpipe(devices=2, microbatches=2)))
