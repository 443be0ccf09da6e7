"""Every golden row of a schedule in the registry, exact to 1e-9.

tests/golden/sync.csv holds makespans, bubbles and peaks that an independent, exact (rational)
event simulator found; each row names its provenance.
"""

from __future__ import annotations

import csv
from fractions import Fraction
from pathlib import Path

import pytest

from weft.cost import Share
from weft.errors import ProgramError
from weft.ir.graph import Graph
from weft.schedules import REGISTRY, Shape
from weft.simulate import simulate

Row = dict[str, str]

FILE = Path(__file__).parents[1] / "golden" / "sync.csv"
OTHER_NAMES = {"naive_mp": "naive", "gpipe_recompute": "gpipe", "chimera_f2": "chimera"}
VARIANTS = {
    "R fused into B (runs after gradient arrives)": "recompute",
    "R may run before gradient arrives": "recompute-early",
    "lean warm-up (D-1-d)+(K-1)D": "lean",
    "ragged last group, G=D": "ragged",
}
PLAIN = ("", "one micro-batch at a time", "direct concatenation", "f=2", "Megatron warm-up")
LATER = {
    "terapipe", "seq1f1b", "zb_1p", "zb_2p", "v_min", "v_zb", "bitpipe",
    "gis", "list_zb",
}  # fmt: skip


def _is_listed(row: Row) -> bool:
    is_later = row["schedule"] in LATER or row["variant"] in (
        "forward doubling",
        "backward halving",
    )
    return row["row_type"] == "schedule" and not is_later


def _rows() -> list[Row]:
    with FILE.open(newline="") as file:
        return [row for row in csv.DictReader(file) if _is_listed(row)]


def _shape(row: Row) -> Shape:
    microbatches = int(row["N"])
    if row["schedule"] == "dag_1f1b":
        depth = int(row["placement"].rpartition("T=")[2])
        return Shape.of_graph(Graph.two_tower(depth), microbatches=microbatches)
    return Shape(
        devices=int(row["D"]),
        microbatches=microbatches,
        stages_per_device=int(row["K"]),
        pipes=int(row["pipelines"]) // 2 if row["schedule"].startswith("chimera") else 1,
        variant=VARIANTS.get(row["variant"], ""),
    )


def _name(row: Row) -> str:
    name = OTHER_NAMES.get(row["schedule"], row["schedule"].removeprefix("dag_"))
    return name.replace("_", "-")


def _label(row: Row) -> str:
    costs = "/".join(row[key] for key in ("tF", "tI", "tW", "comm_lag"))
    size = "x".join(row[key] for key in "DNK")
    return f"{row['schedule']}-{row['variant'][:6]}-{size}-{costs}"


ROWS = _rows()


def test_the_golden_file_has_not_shrunk() -> None:
    assert len(ROWS) == 293


@pytest.mark.parametrize("row", ROWS, ids=_label)
def test_golden_row(row: Row) -> None:
    program = REGISTRY[_name(row)].program(_shape(row))
    share = Share(
        forward=float(row["tF"]),
        input_grad=float(row["tI"]),
        weight_grad=float(row["tW"]),
        latency=float(row["comm_lag"]),
    )
    if row["makespan"] == "DEADLOCK":
        with pytest.raises(ProgramError):
            simulate(program, share.cost(program))
        return
    timeline = simulate(program, share.cost(program))
    assert timeline.makespan == pytest.approx(float(row["makespan"]), rel=0, abs=1e-9)
    assert timeline.device_spans.max() == pytest.approx(
        float(row["longest_device_span"]), rel=0, abs=1e-9
    )
    wall = float(Fraction(row["bubble_area_exact"]))
    assert timeline.bubble.wall == pytest.approx(wall, rel=0, abs=1e-9)
    assert timeline.bubble.span == pytest.approx(float(row["bubble_span"]), abs=5e-7)
    peaks = [float(peak) for peak in row["peak_act_per_device"].split()]
    assert timeline.peak_activations == pytest.approx(peaks, rel=0, abs=1e-9)
    assert program.messages == int(row["p2p_msgs"])
    assert program.placement.weight_copies == float(row["weight_copies"])
