"""What Weft exports, torch's own runtime loads and runs: gloo, two processes, a real step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from weft.errors import NotationError
from weft.ir.program import Program
from weft.lower import updates, wires
from weft.notation import from_torch_csv, read_program, to_torch_csv
from weft.schedules import REGISTRY, Shape
from weft.verify import verify

pytest.importorskip("torch.distributed.pipelining.schedules")

RANKS = 2
MICROBATCHES = 4
SECONDS = 60
ROOT = Path(__file__).parents[2]

# torch lowers its ZBV order so with defer_pp_recv=True: rank 1 takes 0F2 for a gradient.
SWAPPED = """\
0F0,0SEND_F0,0F1,0SEND_F1,0F2,3RECV_F0,0SEND_F2,3F0,3I0,3RECV_F1,3SEND_B0,3W0,3F1,3I1,3SEND_B1,\
3W1,0F3,0RECV_B0,0SEND_F3,0I0,0W0,3RECV_F2,3F2,3I2,3SEND_B2,3W2,0RECV_B1,0I1,0W1,3RECV_F3,3F3,3I3,\
3SEND_B3,3W3,3REDUCE_GRAD,0RECV_B2,0I2,0W2,0RECV_B3,0I3,0W3,0REDUCE_GRAD
1RECV_F0,1F0,2F0,2SEND_F0,1RECV_F1,1F1,2F1,2SEND_F1,2RECV_B0,2I0,2W0,1RECV_F2,1F2,1I0,1SEND_B0,1W0,\
2F2,2SEND_F2,2RECV_B1,2I1,2W1,1RECV_F3,1F3,1I1,1SEND_B1,1W1,2F3,2SEND_F3,2RECV_B2,2I2,2W2,1I2,\
1SEND_B2,2RECV_B3,2I3,1I3,1SEND_B3,1W2,2W3,2REDUCE_GRAD,1W3,1REDUCE_GRAD
"""


def programs() -> Iterator[tuple[str, Program]]:
    """Every schedule and variant that torch can express, on two devices."""
    for schedule in REGISTRY:
        least, most = schedule.stages_per_device
        for variant in ("", *schedule.variants):
            shape = Shape(
                devices=RANKS,
                microbatches=MICROBATCHES,
                stages_per_device=least if most else 2,
                variant=variant,
            )
            if schedule.accepts(shape) is None:
                yield f"{schedule.name}{variant and f'-{variant}'}", schedule.program(shape)


def cases(folder: Path) -> Iterator[dict[str, object]]:
    """All that torch is to run, its tables written to a folder."""
    for name, program in programs():
        try:
            plain, lowered = to_torch_csv(program), to_torch_csv(updates(wires(program)))
        except NotationError:
            continue
        yield case(folder, f"{name} plain", plain, "compute_only")
        yield case(folder, f"{name} lowered", lowered, "compute_comms")
    yield case(folder, "swapped", SWAPPED, "compute_comms")


def case(folder: Path, name: str, table: str, form: str) -> dict[str, object]:
    path = folder / f"{name}.csv"
    path.write_text(table)
    program = read_program(path)
    held = [[stage for _, stage in stages] for stages in program.placement.held]
    return {
        "name": name,
        "table": path.name,
        "form": form,
        "microbatches": program.microbatches,
        "held": held,
    }


def run(folder: Path) -> dict[str, float]:
    """The largest relative error of the gradients of each case; ends by itself."""
    (folder / "cases.json").write_text(json.dumps(list(cases(folder))))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.notation.torch_ranks", str(rank), str(folder)],
            cwd=ROOT,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        told = [rank.communicate(timeout=SECONDS)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * RANKS, "\n".join(told)
    by_rank = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]
    return {name: max(errors[name] for errors in by_rank) for name in by_rank[0]}


def test_torch_trains_with_every_table_that_weft_writes(tmp_path: Path) -> None:
    errors = run(tmp_path)
    swapped = errors.pop("swapped")
    assert {name: error for name, error in errors.items() if error > 1e-5} == {}
    assert {"1f1b", "interleaved-1f1b", "interleaved-1f1b-lean", "zbv", "dualpipev"} <= {
        name.split()[0] for name in errors
    }
    assert swapped > 0.1, "what Weft refuses is wrong in torch, and torch does not notice"


def test_the_swapped_table_is_refused() -> None:
    (finding,) = verify(from_torch_csv(SWAPPED)).findings
    assert finding.rule == "wires"
