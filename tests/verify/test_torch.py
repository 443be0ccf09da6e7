"""What torch's own checks let through, Weft refuses."""

from __future__ import annotations

import csv
import io

import pytest

from weft.ir.program import Program
from weft.notation import from_torch_csv
from weft.verify import verify

visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")
schedules = pytest.importorskip("torch.distributed.pipelining.schedules")


def _table(name: str, devices: int, microbatches: int) -> Program:
    rows = visualizer.get_schedule_ops(name, devices, microbatches)
    text = io.StringIO()
    csv.writer(text).writerows(
        [["" if cell is None else str(cell) for cell in row] for row in rows]
    )
    return from_torch_csv(text.getvalue())


def test_torchs_published_1f1b_order_lacks_a_forward() -> None:
    """torch 2.13 lists F1 ... F6 instead of F0 ... F5 on the last of 4 ranks."""
    report = verify(_table("1F1B", 4, 6))
    assert not report.is_valid
    told = str(report)
    assert "3F6" in told
    assert "3F0" in told
    assert "device 3" in told


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
