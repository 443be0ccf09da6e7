"""Over NCCL nothing is read before it has come, nor written or given back while it is sent."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from torch import nn

from tests.runtime.models import WIDTH, batches, plain_descent, squared
from tests.runtime.ranks import run
from tests.runtime.watched_ranks import watched_over_nccl
from weft.errors import WeftError
from weft.ir.program import Program
from weft.lower import experts
from weft.runtime import Pipeline
from weft.schedules import REGISTRY, Shape

SCHEDULES = ("1f1b", "interleaved-1f1b", "zbv", "chimera", "dualpipev", "kimi-k2", "wpipe")


def faults(transport: str, names: tuple[str, ...], *, is_waiting: bool = True) -> dict[str, str]:
    """In a rank: the first thing that goes wrong, by schedule and options."""
    found = {}
    for name in names:
        program = program_of(name)
        ways: list[tuple[str, Program, dict[str, Any]]] = [
            ("compressed", program, {"clip": 0.1, "compress": "fp8"}),
            ("offloaded", program, {"offload": "all"}),
        ]
        with suppress(WeftError):
            ways.append(("in segments", experts(program), {}))
        for way, runs, options in ways:
            with watched_over_nccl(2 if transport == "mixed" else 1, is_waiting=is_waiting) as seen:
                train(runs, transport, **options)
            if seen.faults:
                found[f"{name} {way}"] = seen.faults[0]
    return found


def program_of(name: str) -> Program:
    schedule = REGISTRY[name]
    least, most = schedule.stages_per_device
    shape = Shape(
        devices=2,
        microbatches=4,
        stages_per_device=least if most else 2,
        updates=6,
        round=2 if schedule.takes_round else 0,
    )
    return schedule.program(shape)


def train(program: Program, transport: Any, **options: Any) -> None:
    stages = [nn.Sequential(*(normed() for _ in range(4))) for _ in range(program.stages)]
    settings = {"loss": squared, "optimizer": plain_descent, "transport": transport, **options}
    with Pipeline(stages, program, **settings) as pipeline:
        for batch, target in batches(2 * program.microbatches, 3):
            pipeline.step(batch, target)


def normed() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH))


@pytest.mark.parametrize("transport", ["nccl", "mixed"])
def test_what_streams_do_with_messages(transport: str) -> None:
    assert run(2, faults, transport, SCHEDULES) == [{}, {}]


def test_a_reader_that_does_not_wait_is_seen() -> None:
    _, second = run(2, unwaited)
    assert "is read before it is written" in second["1f1b compressed"]


def unwaited() -> dict[str, str]:
    return faults("nccl", ("1f1b",), is_waiting=False)
