"""Over NCCL nothing is read before it has come, nor written or given back while it is sent."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime.models import batches, plain_descent, quartered, squared
from tests.runtime.programs import small
from tests.runtime.ranks import run
from tests.runtime.watched_ranks import watched_over_nccl
from weft.ir.program import Program
from weft.lower import experts
from weft.runtime import Pipeline
from weft.schedules import REGISTRY

SCHEDULES = ("1f1b", "interleaved-1f1b", "zbv", "chimera", "dualpipev", "kimi-k2", "wpipe")


def faults(transport: str, names: tuple[str, ...], *, is_waiting: bool = True) -> dict[str, str]:
    """In a rank: the first thing that goes wrong, by schedule and options."""
    found = {}
    for schedule in map(REGISTRY.__getitem__, names):
        program = small(schedule)
        ways: dict[str, tuple[Program, dict[str, Any]]] = {
            "compressed": (program, {"clip": 0.1, "compress": "fp8"}),
            "offloaded": (program, {"offload": "all"}),
        }
        if not schedule.is_asynchronous:
            ways["in segments"] = experts(program), {}
        for way, (runs, options) in ways.items():
            with watched_over_nccl(2 if transport == "mixed" else 1, is_waiting=is_waiting) as seen:
                train(runs, transport, **options)
            if seen.faults:
                found[f"{schedule.name} {way}"] = seen.faults[0]
    return found


def train(program: Program, transport: Any, **options: Any) -> None:
    settings = {"loss": squared, "optimizer": plain_descent, "transport": transport, **options}
    with Pipeline(quartered(program.stages), program, **settings) as pipeline:
        for batch, target in batches(2 * program.microbatches, 3):
            pipeline.step(batch, target)


@pytest.mark.parametrize("transport", ["nccl", "mixed"])
def test_what_streams_do_with_messages(transport: str) -> None:
    assert run(2, faults, transport, SCHEDULES) == [{}, {}]


def test_a_reader_that_does_not_wait_is_seen() -> None:
    _, second = run(2, unwaited)
    assert "is read before it is written" in second["1f1b compressed"]


def unwaited() -> dict[str, str]:
    return faults("nccl", ("1f1b",), is_waiting=False)
