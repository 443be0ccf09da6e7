"""What Weft exports, torch's own runtime loads and runs: gloo, two processes, a real step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.notation.examples import APART, APART_LOOPED, SWAPPED
from weft.errors import NotationError
from weft.ir.program import Program
from weft.lower import updates, wires
from weft.notation import from_torch_csv, read_program, to_torch_csv
from weft.schedules import REGISTRY, Shape
from weft.verify import verify

pytest.importorskip("torch.distributed.pipelining.schedules")

from tests.notation.torch_ranks import Case, errors
from tests.runtime.ranks import run

RANKS = 2
MICROBATCHES = 4


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


def cases(folder: Path) -> Iterator[Case]:
    """All that torch is to run, its tables written to a folder."""
    for name, program in programs():
        try:
            plain, lowered = to_torch_csv(program), to_torch_csv(updates(wires(program)))
        except NotationError:
            continue
        yield case(folder, f"{name} plain", plain, "compute_only")
        yield case(folder, f"{name} lowered", lowered, "compute_comms")
    yield case(folder, "apart", APART, "compute_comms")
    yield case(folder, "apart looped", APART_LOOPED, "compute_comms")
    yield case(folder, "swapped", SWAPPED, "compute_comms")


def case(folder: Path, name: str, table: str, form: str) -> Case:
    path = folder / f"{name}.csv"
    path.write_text(table)
    program = read_program(path)
    held = [[stage for _, stage in stages] for stages in program.placement.held]
    return Case(name, path.name, form, program.microbatches, held)


def largest_errors(folder: Path) -> dict[str, float]:
    """The largest relative error of the gradients of each case."""
    by_rank = run(RANKS, errors, list(cases(folder)), folder)
    return {name: max(found[name] for found in by_rank) for name in by_rank[0]}


def test_torch_trains_with_every_table_that_weft_writes(tmp_path: Path) -> None:
    found = largest_errors(tmp_path)
    swapped = found.pop("swapped")
    assert {name: error for name, error in found.items() if error > 1e-5} == {}
    assert {"1f1b", "interleaved-1f1b", "interleaved-1f1b-lean", "zbv", "dualpipev"} <= {
        name.split()[0] for name in found
    }
    assert swapped > 0.1, "what Weft refuses is wrong in torch, and torch does not notice"


@pytest.mark.parametrize("table", [APART, APART_LOOPED])
def test_tables_with_sends_apart_from_what_they_send_are_proved(table: str) -> None:
    assert verify(from_torch_csv(table)).is_valid


def test_the_swapped_table_is_refused() -> None:
    (finding,) = verify(from_torch_csv(SWAPPED)).findings
    assert finding.rule == "wires"
