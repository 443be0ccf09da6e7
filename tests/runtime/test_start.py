"""Whoever never comes, or dies before the first step is over, is named by all others."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from tests.runtime.models import batches, linear, plain_descent, squared
from tests.runtime.ranks import Ended, run
from weft.errors import Disagreement, RankError
from weft.runtime import Pipeline
from weft.runtime.ranks.addresses import Addresses
from weft.runtime.ranks.members import Members
from weft.runtime.ranks.rendezvous import _Meeting
from weft.runtime.transport.exchange import Gathered
from weft.schedules import one_f_one_b

RANKS = 3
PROGRAM = one_f_one_b(devices=RANKS, microbatches=4)
DATA = batches(4, 2)
DEADLINE = 5.0  # seconds; ranks that live are there long before

both_transports = pytest.mark.parametrize("transport", ["shared", "gloo"])
each_rank = pytest.mark.parametrize("dying", range(RANKS))


def pipeline_of(**settings: Any) -> Pipeline:
    return Pipeline(linear(RANKS), PROGRAM, loss=squared, **settings)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def said(work: Callable[[], object]) -> str:
    """What it ends with."""
    try:
        work()
    except (RankError, Disagreement) as error:
        return str(error)
    return "nothing"


def check_named(found: list[Any], dying: int, cause: str) -> None:
    """All ranks but the one that was killed say why they end."""
    assert found[dying] == Ended(-signal.SIGKILL)
    for rank, text in enumerate(found):
        if rank != dying:
            assert re.match(cause, text)
            assert f"device {rank} was waiting for " in text


# making the pipeline


def die_before(dying: int) -> str:
    """In each rank: what it says when one dies before it makes its pipeline."""
    if dist.get_rank() == dying:
        kill()
    return said(lambda: pipeline_of(deadline=DEADLINE))


@each_rank
def test_a_rank_that_never_makes_its_pipeline_is_named(dying: int) -> None:
    found = run(RANKS, die_before, dying)
    wanted = f"for device {dying} to make the pipeline"
    check_named(found, dying, rf"nothing came within the deadline of 5 s; .* {wanted}")


def stay_away() -> str:
    """In each rank: what it says when two of them live, and do not come."""
    store = _get_default_store()
    if dist.get_rank():
        store.wait(["said"])
        return ""
    text = said(lambda: pipeline_of(deadline=DEADLINE))
    store.set("said", "")
    return text


def test_all_that_are_missing_are_named() -> None:
    text, *_ = run(RANKS, stay_away)
    why = "nothing came within the deadline of 5 s"
    assert text == f"{why}; device 0 was waiting for devices 1 and 2 to make the pipeline"


def ask_for_the_missing() -> list[int]:
    """In each rank: who has not come, when nobody has."""
    return Addresses(Members.all(), DEADLINE).missing()


def test_a_rank_is_not_missing_to_itself() -> None:
    assert run(2, ask_for_the_missing) == [[1], [0]]


PLACES: dict[str, tuple[type, str]] = {
    "published": (Addresses, "put"),
    "found": (_Meeting, "_connect"),
    "connected": (_Meeting, "_admit"),
}


def die_at(dying: int, place: tuple[type, str], transport: str) -> str:
    """In each rank: what it says when one dies after a call that all make."""
    owner, name = place
    call = getattr(owner, name)

    def and_die(*words: Any) -> None:
        call(*words)
        kill()

    if dist.get_rank() == dying:
        setattr(owner, name, and_die)
    return said(lambda: pipeline_of(transport=transport))


@each_rank
@pytest.mark.parametrize("place", PLACES)
def test_a_rank_that_dies_while_all_meet_is_named(place: str, dying: int) -> None:
    found = run(RANKS, die_at, dying, PLACES[place], "auto")
    check_named(found, dying, f"device {dying} died; ")


@each_rank
def test_a_rank_that_dies_while_gloo_connects_is_named(dying: int) -> None:
    found = run(RANKS, die_at, dying, (Gathered, "answer"), "gloo")
    check_named(found, dying, f"device {dying} died; ")


def fail_in_optimizer() -> str:
    """In each rank: what it says when one cannot make its optimizer."""

    def optimizer(_: object) -> Any:
        raise MemoryError("no room")

    try:
        pipeline = pipeline_of(optimizer=optimizer if dist.get_rank() == 1 else plain_descent)
    except (MemoryError, RankError) as error:
        return str(error)
    return said(lambda: pipeline.step(*DATA[0]))


def test_a_rank_that_cannot_make_its_pipeline_says_so_to_all() -> None:
    first, second, third = run(RANKS, fail_in_optimizer)
    assert second == "no room"
    assert first.startswith("device 1 failed: MemoryError: no room")
    assert third.startswith("device 1 failed: MemoryError: no room")


# a first run


def evaluate(pipeline: Pipeline) -> object:
    return pipeline.evaluate(*DATA[0])


def step(pipeline: Pipeline) -> object:
    return pipeline.step(*DATA[0])


RUNS = {"first evaluation": evaluate, "first step": step}

first_runs = pytest.mark.parametrize("first", RUNS)


def die_between(first: str, transport: str) -> str:
    """In each rank: what its first run says when device 1 dies before it."""
    pipeline = pipeline_of(transport=transport)
    if dist.get_rank() == 1:
        kill()
    return said(lambda: RUNS[first](pipeline))


@both_transports
@first_runs
def test_a_rank_that_dies_before_a_first_run_is_named(first: str, transport: str) -> None:
    found = run(RANKS, die_between, first, transport)
    check_named(found, 1, f"device 1 died; .*the {first} of device")


def never_come(first: str, transport: str) -> str:
    """In each rank: what its first run says when device 1 lives and does not come to it."""
    store, rank = _get_default_store(), dist.get_rank()
    pipeline = pipeline_of(transport=transport, deadline=DEADLINE)
    if first == "first step":
        pipeline.evaluate(*DATA[0])  # which is a run of another kind
    if rank == 1:
        store.wait(["said/0", "said/2"])
        return "nothing"
    text = said(lambda: RUNS[first](pipeline))
    store.set(f"said/{rank}", "")
    return text


@both_transports
@first_runs
def test_a_rank_that_never_comes_to_a_first_run_is_named(first: str, transport: str) -> None:
    found = run(RANKS, never_come, first, transport)
    assert found[1] == "nothing"
    for text in (found[0], found[2]):
        assert re.match("nothing came within the deadline of 5 s; ", text)
        assert f"the {first} of device 1" in text


def differ() -> str:
    """In each rank: what it says when one evaluates and all others train."""
    pipeline = pipeline_of()
    return said(lambda: (evaluate if dist.get_rank() == 1 else step)(pipeline))


def test_ranks_that_begin_with_different_runs_are_refused() -> None:
    assert run(RANKS, differ) == ["first runs of ranks [1] differ from those of rank 0"] * RANKS


def ask_alone() -> str:
    """In each rank: what one says that alone asks for the timeline of the first step."""
    store = _get_default_store()
    pipeline = pipeline_of(deadline=DEADLINE)
    result = pipeline.step(*DATA[0])
    if dist.get_rank():
        store.wait(["said"])
        return ""
    text = said(lambda: pipeline.gathered(result))
    store.set("said", "")
    return text


def test_after_a_first_step_the_deadline_counts() -> None:
    text, *_ = run(RANKS, ask_alone)
    why = "nothing came within the deadline of 5 s"
    assert text == f"{why}; device 0 was waiting for the timeline of devices 1 and 2"
