"""The transports of GPUs between ranks of CPUs: orders, messages, and how all of it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.asynchrony import differences as asynchronous_differences
from tests.runtime.asynchrony import momentum, named
from tests.runtime.exactness import differences_of
from tests.runtime.habits.draws import drawn
from tests.runtime.habits.ranks import judge_in_ranks
from tests.runtime.like_gpus import like_gpus
from tests.runtime.models import squared
from tests.runtime.ranks import run
from tests.runtime.test_descriptions import (
    frozen_and_passed_on,
    hooked_before,
    hooked_later,
    kept,
    read_now_and_then,
    thawed,
)
from tests.runtime.test_exact import SYNCHRONOUS, program_of
from tests.runtime.test_replicas import train as train_copies
from weft.runtime import Pipeline
from weft.runtime.ranks.carriers import OF_GPUS
from weft.schedules import gpipe

of_gpus = pytest.mark.parametrize("transport", OF_GPUS)
ASYNCHRONOUS: dict[str, dict[str, Any]] = {
    "pipedream-4x1": {"drains": (2, 3)},
    "naive-async-4x1": {},
    "pipedream-2bw-4x3": {"clip": 0.05, "drains": (2,)},
    "wpipe-4x8r4": {"model": "tied", "clip": 0.05},
    "wpipe-fresh-4x8r4": {"model": "normed"},
}


def over(transport: str, function: Callable[..., Any], *args: Any) -> Any:
    """In a rank; where transports are mixed, half of them are on another host."""
    with like_gpus(hosts=2 if transport == "mixed" else 1):
        return function(*args, transport=transport)


# gradients


def train(transport: str) -> dict[str, list[str]]:
    """What differs, by schedule: messages are in one order, and computation is as it was."""
    found = {}
    for schedule in SYNCHRONOUS:
        for variant in ("", *schedule.variants):
            program = program_of(schedule, 4, variant)
            model = "tied" if schedule.stages_per_device == (1, 1) else "layers"
            differs = differences_of(model, program, transport=transport)
            found[f"{schedule.name} {variant}"] = [x for x in differs if "order" not in x]
    return {name: differs for name, differs in found.items() if differs}


@of_gpus
def test_every_synchronous_schedule_is_exact(transport: str) -> None:
    assert run(4, over, transport, train) == [{}] * 4


def train_asynchronously(transport: str) -> dict[str, list[str]]:
    """As above: in which order a rank's lanes record their actions is no part of it."""
    found = {}
    for name, settings in ASYNCHRONOUS.items():
        differs = asynchronous_differences(named(name), transport=transport, updates=6, **settings)
        found[name] = [one for one in differs if "order" not in one]
    return {name: differs for name, differs in found.items() if differs}


@of_gpus
def test_asynchronous_schedules_are_exact(transport: str) -> None:
    assert run(4, over, transport, train_asynchronously) == [{}] * 4


def train_replicas(transport: str) -> list[list[str]]:
    """Two of two ranks each; half of the names with an optimizer that they share."""
    whole = train_copies(["zbv", "pipedream-2bw"], "dp, pp", transport=transport)
    shared = train_copies(["chimera", "wpipe"], "dp, pp", transport=transport, shard_optimizer=True)
    return whole + shared


@of_gpus
def test_replicas_are_exact(transport: str) -> None:
    assert run(4, over, transport, train_replicas) == [[[]] * 4] * 4


def train_shared(transport: str) -> list[float]:
    """Losses, where each stage ends with the same module."""
    torch.manual_seed(0)
    shared = nn.Sequential(*(nn.Linear(4, 4) for _ in range(8)))
    pipeline = Pipeline(
        [nn.Sequential(nn.Linear(4, 4), shared) for _ in range(3)],
        gpipe(devices=3, microbatches=2),
        loss=squared,
        optimizer=momentum,
        transport=transport,  # type: ignore[arg-type]
    )
    with pipeline:
        return [float(pipeline.step(*torch.ones(2, 4, 4)).loss) for _ in range(3)]


@of_gpus
def test_many_sums_are_offered_before_a_message_that_others_wait_for(transport: str) -> None:
    assert run(3, over, transport, train_shared) == [train_shared("loopback")] * 3


def test_a_sample_of_random_models() -> None:
    every = (case for case in map(drawn, range(300)) if case.plan.program.devices == 3)
    sample = [next(every) for _ in range(6)]
    verdicts = judge_in_ranks(sample, "nccl")
    assert all(verdict.kind != "wrong" for verdict in verdicts), verdicts
    assert sum(verdict.kind == "equal" for verdict in verdicts) > len(sample) / 2


@pytest.mark.parametrize("case", [hooked_before, hooked_later, kept, thawed, read_now_and_then])
def test_what_changes_where_a_stage_is_held_is_known_to_its_neighbours(
    case: Callable[[Any], list[float] | str],
) -> None:
    assert run(2, over, "nccl", case) == [case("loopback")] * 2


def test_a_gradient_that_nobody_wants_any_more_does_no_harm() -> None:
    assert run(3, over, "nccl", frozen_and_passed_on) == [frozen_and_passed_on("loopback")] * 3
