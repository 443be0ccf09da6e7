"""On streams nothing is read before it is there, nor given back while another stream uses it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import pytest

from tests.runtime.habits.draws import drawn
from tests.runtime.habits.streams import judge_on_streams
from tests.runtime.models import batches, plain_descent, quartered, squared
from tests.runtime.programs import small
from tests.runtime.watched_device import watched
from weft.ir.program import Program
from weft.lower import experts, split
from weft.runtime import Pipeline
from weft.runtime.lane.plan import Planner
from weft.runtime.stage import stage
from weft.runtime.stage.offload import HeldTensors
from weft.runtime.stage.storage.blocks import HostBlock, HostBlocks
from weft.runtime.transport import compressed, loopback
from weft.runtime.weights import groups
from weft.schedules import REGISTRY, Schedule, chimera, interleaved_1f1b, kimi_k2, one_f_one_b

K2 = experts(kimi_k2(devices=2, microbatches=4))


def faults(program: Program, *, unmarked: object = None, **options: Any) -> list[str]:
    """What goes wrong in some steps of stages whose every segment has weights."""
    with watched(unmarked=unmarked) as device:
        settings = {"loss": squared, "optimizer": plain_descent, **options}
        pipeline = Pipeline(quartered(program.stages), program, **settings)
        for batch, target in batches(2 * program.microbatches, 4 if program.period else 2):
            pipeline.step(batch, target)
    return device.faults


@pytest.mark.parametrize("schedule", REGISTRY, ids=[one.name for one in REGISTRY])
def test_a_schedule(schedule: Schedule) -> None:
    program = small(schedule)
    assert faults(program, offload="all", compress="fp8") == []
    if schedule.is_asynchronous:
        return
    assert faults(program, clip=0.1, compress="fp8") == []
    cut = experts(program)
    assert faults(cut) == []
    assert faults(cut, offload="all") == []
    assert faults(cut, clip=0.1, compress="fp8", shard_optimizer=True) == []


def test_segments_of_backwards_that_are_split_or_not() -> None:
    whole = one_f_one_b(devices=2, microbatches=4)
    for program in (whole, split(whole)):
        assert faults(experts(program), clip=0.1) == []


def test_random_models() -> None:
    sample = [*map(drawn, range(16))]
    verdicts = judge_on_streams(sample)
    assert all(verdict.kind != "wrong" for verdict in verdicts), verdicts
    assert sum(verdict.kind == "equal" for verdict in verdicts) > len(sample) / 2


# that faults are seen


def test_a_stage_that_does_not_wait_for_a_send_is_seen() -> None:
    across = Planner._across

    def loose(planner: Planner, streams: Any, *, is_alone: bool) -> Any:
        return across(planner, streams, is_alone=False)

    with patch.object(Planner, "_across", loose):
        found = faults(K2, compress="fp8")
    assert any("is read before it is written" in one for one in found)


@pytest.mark.parametrize(
    ("module", "program", "home"),
    [
        (stage, K2, "experts"),
        (loopback, K2, "experts"),
        (compressed, K2, "compute"),
        (groups, chimera(devices=2, microbatches=4), "reduce"),
        (groups, experts(one_f_one_b(devices=2, microbatches=4)), "experts"),
    ],
    ids=["weight gradients", "borders", "compression", "sums", "gradients of parts beside"],
)
def test_memory_that_is_given_back_too_early_is_seen(
    module: object, program: Program, home: str
) -> None:
    found = faults(program, unmarked=module, compress="fp8")
    assert any(f"of {home} is given back while it is used" in one for one in found)


@pytest.mark.parametrize(
    ("method", "instead", "words"),
    [
        ("release", lambda held: held._leaving.clear(), "of compute is given back"),
        ("_at_home", lambda _: nullcontext(), "of onload is given back"),
    ],
    ids=["what leaves", "what comes back"],
)
def test_memory_that_is_not_of_the_forwards_stream_is_seen(
    method: str, instead: Callable[[HeldTensors], Any], words: str
) -> None:
    with patch.object(HeldTensors, method, instead):
        found = faults(one_f_one_b(devices=2, microbatches=4), offload="all")
    assert any(words in one for one in found)


def test_memory_of_the_host_that_is_used_again_too_early_is_seen() -> None:
    take = HostBlocks.take

    def taken(blocks: HostBlocks, size: int, *, is_pinned: bool, stream: Any = None) -> HostBlock:
        return take(blocks, size, is_pinned=is_pinned, stream=None)

    program = interleaved_1f1b(devices=2, microbatches=4)
    assert faults(program, offload="all") == []
    with patch.object(HostBlocks, "take", taken):
        found = faults(program, offload="all")
    assert any("is written while it is used" in one for one in found)
