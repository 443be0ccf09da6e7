"""The offload pass: golden peaks, what stays, what fits, and the recompute pass beside it."""

from __future__ import annotations

import csv
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from weft.cost import Cost, Link, Share
from weft.errors import InputError
from weft.ir.kinds import Kind, Layer, Stream
from weft.ir.program import Program
from weft.lower import (
    Amount,
    executable,
    experts,
    offload,
    recompute,
    recompute_early,
    updates,
    wires,
)
from weft.notation import from_json, from_text, plain, to_json, to_text
from weft.schedules import REGISTRY, gpipe, interleaved_1f1b, kimi_k2, one_f_one_b, zb_h1
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


def _moved(program: Program, device: int = 0) -> int:
    is_here = (program.device_of == device) & (program.actions.kind == Kind.OFFLOAD)
    return int(is_here.sum())


@pytest.mark.parametrize("amount", ["auto", "all"])
def test_all_that_1f1b_saves_leaves_at_no_cost_where_a_copy_takes_no_longer_than_a_forward(
    amount: Amount,
) -> None:
    """What stays is the state that is computed or used, and the one on its way: whatever D is."""
    for devices, schedule in ((4, one_f_one_b), (16, one_f_one_b)):
        program = schedule(devices=devices, microbatches=4 * devices)
        before = simulate(program, _cost(program, 1.0))
        after = simulate(executable(offload(before, amount=amount)), before.cost)
        assert _moved(after.program) == program.microbatches
        assert after.makespan <= 1.02 * before.makespan
        assert before.memory.curves[0][Category.ACTIVATIONS].peak == devices
        assert after.memory.curves[0][Category.ACTIVATIONS].peak == 2


def test_what_leaves_in_smaller_pieces_leaves_less_here() -> None:
    """Of eight stages on each of four devices, the first keeps a fifth of what it did."""
    program = interleaved_1f1b(devices=4, microbatches=16, stages_per_device=8)
    before = simulate(program, _cost(program, 1.0))
    after = simulate(executable(offload(before, amount="all")), before.cost)
    peaks = [one.memory.curves[0][Category.ACTIVATIONS].peak for one in (before, after)]
    assert peaks[1] <= 0.2 * peaks[0]
    assert after.makespan <= 1.02 * before.makespan


@pytest.mark.parametrize(("layers", "kept"), [(4, 0.5), (8, 0.25)])
def test_stages_cut_into_layers_keep_two_layers_at_a_time(layers: int, kept: float) -> None:
    """Of four states: 87.5 % of them leave with 4 layers, 93.75 % with 8, at no cost."""
    program = one_f_one_b(devices=4, microbatches=16)
    cost = _cost(program, 0.5)
    before = simulate(program, cost)
    cut = simulate(experts(program, layers=[[Layer.PLAIN] * layers] * 4), cost)
    lowered = executable(offload(cut, amount="all"))
    after = simulate(lowered, cost)
    assert verify(lowered).is_valid
    assert after.makespan <= 1.02 * before.makespan
    peaks = [one.memory.curves[0][Category.ACTIVATIONS].peak for one in (before, after)]
    assert peaks == pytest.approx([4.0, kept])
    assert _moved(lowered, 0) == 16 * layers
    assert _moved(lowered, 3) == 0  # whose next slot is the backward of what it has computed
    assert from_text(to_text(lowered)) == from_json(to_json(lowered)) == lowered


def test_layers_that_exchange_tokens_leave_together() -> None:
    program = experts(one_f_one_b(devices=4, microbatches=8), layers=2)
    lowered = offload(simulate(program, _cost(program, 0.5)), amount="all")
    assert {action.segment for action in lowered.actions if action.kind is Kind.OFFLOAD} == {None}
    assert _moved(lowered) == 8


def test_a_fraction_is_of_the_bytes_of_each_device() -> None:
    program = one_f_one_b(devices=4, microbatches=8)
    timeline = simulate(program, _cost(program, 0.25))
    for share, expected in ((0.0, 0), (0.5, 4), (0.9, 7), (1, 8)):
        lowered = offload(timeline, amount=share)
        assert [_moved(lowered, device) for device in range(4)] == [expected] * 3 + [0]
    both = interleaved_1f1b(devices=2, microbatches=4, stages_per_device=2)
    cost = _cost(both, 0.25)
    cost = replace(cost, memory=replace(cost.memory, saved=(3.0, 3.0, 1.0, 1.0)))
    lowered = offload(simulate(both, cost), amount=0.75)  # of 16 bytes, those of stage 0
    is_first = (lowered.actions.kind == Kind.OFFLOAD) & (lowered.device_of == 0)
    assert lowered.actions.stage[is_first].tolist() == [0] * 4


def test_a_fraction_lowers_the_peak_where_all_states_live_as_long() -> None:
    """What lives longest could all be of the warm-up, and the peak would stay in the rest."""
    program = one_f_one_b(devices=8, microbatches=32)
    timeline = simulate(program, _cost(program, 0.25))
    for share, most in ((0.25, 7), (0.5, 5), (0.75, 4)):
        after = simulate(offload(timeline, amount=share), timeline.cost)
        assert _moved(after.program) == share * program.microbatches
        assert after.memory.curves[0][Category.ACTIVATIONS].peak <= most
        assert after.makespan == timeline.makespan


def test_auto_never_lengthens_a_step_and_all_may() -> None:
    program = one_f_one_b(devices=4, microbatches=8)
    for copy in (0.5, 1.4, 2.9, 20.0):
        before = simulate(program, _cost(program, copy))
        auto, everything = (
            simulate(offload(before, amount=amount), before.cost) for amount in ("auto", "all")
        )
        assert auto.makespan == pytest.approx(before.makespan)
        assert everything.makespan >= auto.makespan
    assert everything.makespan > 2 * before.makespan
    assert not _moved(auto.program)


@pytest.mark.parametrize("name", ["pipedream", "pipedream-2bw", "wpipe", "naive-async"])
def test_a_program_that_repeats_offloads_alike_in_every_body(name: str) -> None:
    schedule = REGISTRY[name]
    program = schedule(
        devices=4, microbatches=8, stages_per_device=schedule.stages_per_device[0], updates=8
    )
    assert program.period is not None
    cost = _cost(program, 0.5)
    for amount in ("auto", "all", 0.5):
        lowered = offload(simulate(program, cost), amount=amount)
        assert verify(lowered).is_valid
        assert verify(executable(lowered)).is_valid
        long = lowered.unrolled(5)
        assert verify(long).is_valid
        forwards = int(((long.actions.kind == Kind.F) & (long.device_of == 0)).sum())
        share = _moved(long) / forwards
        assert share == 1 if isinstance(amount, str) else 0.4 < share < 0.6
        if isinstance(amount, str):
            plain = program.unrolled(5)
            assert simulate(long, cost).makespan == pytest.approx(simulate(plain, cost).makespan)


def test_recomputed_stages_move_their_inputs_alone() -> None:
    program = recompute(one_f_one_b(devices=4, microbatches=8))
    unit = _cost(program, 1.0)
    cost = replace(unit, memory=replace(unit.memory, inputs=(0.125,) * 4))
    before = simulate(program, cost)
    after = simulate(offload(before, amount="all"), cost)
    moved = after.program.actions.kind == Kind.OFFLOAD
    assert (after.end - after.start)[moved] == pytest.approx(0.125)
    for curves in after.memory.curves:
        assert all(curve.levels.min() >= 0 for curve in curves.values())
    peaks = [one.memory.curves[0][Category.INPUTS].peak for one in (before, after)]
    assert peaks[1] < peaks[0]


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
