"""What torch's own checks let through, Weft refuses."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from tests.cli.running import weft
from weft.draw import plain
from weft.ir.kinds import Direction, Stream
from weft.ir.lanes import Channel, Lane
from weft.ir.program import Program
from weft.lower import unwired, wires
from weft.notation import from_torch_csv
from weft.schedules import one_f_one_b
from weft.simulate import simulate
from weft.verify import verify

visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")
schedules = pytest.importorskip("torch.distributed.pipelining.schedules")


def _csv(name: str, devices: int, microbatches: int, **options: bool) -> str:
    """As torch's `_dump_csv` writes it."""
    rows = visualizer.get_schedule_ops(name, devices, microbatches, **options)
    text = io.StringIO()
    csv.writer(text).writerows(
        [["" if cell is None else str(cell) for cell in row] for row in rows]
    )
    return text.getvalue()


def _table(name: str, devices: int, microbatches: int, **options: bool) -> Program:
    return from_torch_csv(_csv(name, devices, microbatches, **options))


def test_torchs_published_1f1b_order_lacks_a_forward() -> None:
    """torch 2.13 lists F1 ... F6 instead of F0 ... F5 on the last of 4 ranks."""
    report = verify(_table("1F1B", 4, 6))
    assert not report.is_valid
    shown = str(report)
    assert "3F6" in shown
    assert "3F0" in shown
    assert "device 3" in shown


@pytest.mark.parametrize(
    ("name", "devices", "microbatches"),
    [
        ("Interleaved1F1B", 4, 8),
        ("LoopedBFS", 4, 8),
        ("InterleavedZeroBubble", 4, 8),
        ("ZBVZeroBubble", 4, 8),
        ("DualPipeV", 4, 8),
        ("GPipe", 4, 8),
    ],
)
def test_torchs_other_tables_are_valid(name: str, devices: int, microbatches: int) -> None:
    assert verify(_table(name, devices, microbatches)).is_valid


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        ("0F0,0B0\n1B0,1F0\n", "ordered"),  # the last stage's backward before its forward
        ("0F0,0W0,0I0\n1F0,1I0,1W0\n", "ordered"),  # W before I
        ("0F0,0F1,0B1,0B0\n1F0,1B0,1F1,1B1\n", None),  # unusual, and fine
        ("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "deadlock"),
    ],
)
def test_orders_that_torchs_simulator_accepts(table: str, rule: str | None) -> None:
    report = verify(from_torch_csv(table))
    assert {finding.rule for finding in report.findings} == ({rule} if rule else set())


def test_torchs_simulator_accepts_the_last_backward_before_its_forward() -> None:
    """Why the test above matters: torch itself times both without complaint."""
    order = {
        rank: [schedules._Action.from_str(cell) for cell in row.split(",")]
        for rank, row in enumerate(("0F0,0B0", "1B0,1F0"))
    }
    lowered = schedules._add_send_recv(order, lambda stage: stage, num_stages=2)
    schedules._simulate_comms_compute(lowered, lambda stage: stage, num_stages=2)


# lowered tables: all messages from one rank to another travel in one order, without a name

LOWERED = [
    (name, devices)
    for name in (
        "Interleaved1F1B",
        "LoopedBFS",
        "InterleavedZeroBubble",
        "ZBVZeroBubble",
        "DualPipeV",
    )
    for devices in (2, 4, 8)
]
SWAPPED = {
    ("InterleavedZeroBubble", 2): {1},
    ("ZBVZeroBubble", 2): {1},
    ("ZBVZeroBubble", 4): {1, 2, 3},
    ("ZBVZeroBubble", 8): {1, 2, 3, 4, 5, 6, 7},
    ("DualPipeV", 4): {1, 2},
    ("DualPipeV", 8): {1, 2, 3, 4, 5, 6},
}


@pytest.mark.parametrize(("name", "devices"), LOWERED)
def test_torchs_lowered_tables_are_valid_timed_and_drawn(name: str, devices: int) -> None:
    lowered = _table(name, devices, 2 * devices, with_comms=True)
    assert verify(lowered).is_valid
    computed = _table(name, devices, 2 * devices)
    assert unwired(lowered) == computed
    assert simulate(lowered).makespan == simulate(computed).makespan
    assert "bubble" in plain(simulate(lowered), width=80)


@pytest.mark.parametrize(("name", "devices"), LOWERED)
def test_deferred_receives_swap_messages(name: str, devices: int) -> None:
    """torch 2.13 moves receives and not the sends they answer."""
    program = _table(name, devices, 2 * devices, with_comms=True, defer_pp_recv=True)
    report = verify(program)
    assert {finding.rule for finding in report.findings} <= {"wires"}
    assert {finding.device for finding in report.findings} == SWAPPED.get((name, devices), set())


def test_a_swap_is_reported_with_its_cause_and_remedy(tmp_path: Path) -> None:
    path = tmp_path / "zbv.csv"
    path.write_text(_csv("ZBVZeroBubble", 2, 4, with_comms=True, defer_pp_recv=True))
    result = weft("verify", str(path))
    assert result.exit_code == 1
    assert result.stdout == (
        "zbv on 2 devices: device 1 expects recv:2-3B0 where send:0-1F2 arrives: activations and"
        " gradients of device 0 come on one channel, in the order of their sends, and 2 of 8 are"
        " taken for others. List receives in the order of their sends.\n"
    )


def test_an_intact_table_is_proved(tmp_path: Path) -> None:
    path = tmp_path / "zbv.csv"
    path.write_text(_csv("ZBVZeroBubble", 2, 4, with_comms=True))
    assert weft("verify", str(path)).exit_code == 0


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ("0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", "never sends. Add it to device 0"),
        ("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n", "never received. Add recv:0-1F0"),
        ("0F0,0SEND_F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", "twice"),
        ("0F0,0SEND_F0,1F0,1B0,0B0\n2F0,2B0\n", "no other device reads"),
        ("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,0SEND_F0,1B0,1SEND_B0\n", "its lane holds no"),
    ],
)
def test_lost_and_stray_messages_are_found(table: str, fault: str) -> None:
    assert any(fault in finding.message for finding in verify(from_torch_csv(table)).findings)


def test_a_message_leaves_and_arrives_on_one_channel() -> None:
    program = wires(one_f_one_b(devices=2, microbatches=2))
    lanes = program.contents()
    apart = Channel(0, 1, Direction.ACTIVATION)
    received = lanes.pop(Lane(1, Stream.WIRE, apart))
    lanes[Lane(1, Stream.WIRE, Channel(0, 1, Direction.BOTH))] = received
    (finding,) = verify(program.with_lanes(lanes)).findings
    assert finding.rule == "wires"
    assert finding.action == "recv:0-1F0"
    assert "List both on one channel." in finding.message
