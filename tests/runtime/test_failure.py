"""Whatever ends one rank ends all others, with the reason and what each was waiting for."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import _get_default_store

from tests.runtime.models import WIDTH, batches, squared
from tests.runtime.ranks import Ended, outcomes, run
from weft.errors import WeftError
from weft.runtime import Pipeline
from weft.schedules import one_f_one_b

PROGRAM = one_f_one_b(devices=3, microbatches=6)
DATA = batches(6, 2)
DEADLINE = 1.0
PATIENCE = 60.0  # seconds, after which a test has failed

both_transports = pytest.mark.parametrize("transport", ["shared", "gloo"])


class Troubled(nn.Module):
    """Does something before one of its forwards."""

    def __init__(self, trouble: dict[int, Callable[[], object]]) -> None:
        super().__init__()
        self.line, self.calls, self.trouble = nn.Linear(WIDTH, WIDTH), 0, trouble

    def forward(self, value: Tensor) -> Tensor:
        if not value.is_meta:
            self.trouble.get(self.calls, lambda: None)()
            self.calls += 1
        out: Tensor = self.line(value)
        return out


def pipeline_of(
    stage: int = 0, trouble: dict[int, Callable[[], object]] | None = None, **settings: Any
) -> Pipeline:
    """A stage may have trouble, by the number of its forward."""
    modules = [Troubled(trouble or {} if index == stage else {}) for index in range(3)]
    return Pipeline(modules, PROGRAM, loss=squared, **settings)


def said(pipeline: Pipeline, step: int = 0) -> str:
    """What a step ends with."""
    try:
        pipeline.step(*DATA[step])
    except WeftError as error:
        return str(error)
    return "nothing"


def waited(device: int, token: str, other: int | str) -> str:
    return rf"device {device} was waiting for {token} of device {other}"


# an exception


def raise_on_one(transport: str) -> tuple[str, str]:
    """In each rank: what the step says, and the one after it."""
    pipeline = pipeline_of(2, {2: fail}, transport=transport)
    return said(pipeline), said(pipeline, 1)


def fail() -> None:
    raise ValueError("out of luck")


@both_transports
def test_an_exception_is_reported_on_every_rank_with_its_action(transport: str) -> None:
    found = run(3, raise_on_one, transport)
    first = "device 2 failed at 2F2: out of luck"
    assert found[2] == (first, first)
    for device, (step, after) in enumerate(found[:2]):
        assert re.fullmatch(f"{first}; {waited(device, r'[012][FB][0-5]', r'[012]')}", step)
        assert after == first, "a further step is refused at once"


def refuse_on_one(transport: str) -> str:
    """In each rank: what a step says that one rank refuses before it begins to run."""
    pipeline = pipeline_of(transport=transport, deadline=10 * PATIENCE, optimizer=descent)
    said(pipeline)
    module: Any = pipeline.modules.get((0, 1))
    if module is not None:
        module.line.weight = nn.Parameter(torch.zeros(WIDTH, WIDTH))
    heard = said(pipeline, 1)
    dist.barrier()  # nobody ends before all know
    return heard


def descent(named: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([weight for _, weight in named], lr=0.1)


@both_transports
def test_a_step_that_one_rank_does_not_begin_ends_on_all(transport: str) -> None:
    """The others wait for what it was to send, and it lives on."""
    for heard in run(3, refuse_on_one, transport):
        assert "stage 1 has another parameter line.weight" in heard


def raise_elsewhere(error: type[BaseException], transport: str) -> str:
    """In each rank: what the first or second step says when the first fails on device 1 alone."""

    class Refusing(torch.optim.SGD):
        def step(self, *_: object) -> None:  # type: ignore[override]
            if dist.get_rank() == 1:
                raise error("no room")

    pipeline = pipeline_of(
        optimizer=lambda named: Refusing([weight for _, weight in named]), transport=transport
    )
    return next(shown for step in (0, 1) if (shown := said(pipeline, step)) != "nothing")


@both_transports
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_an_error_outside_the_stages_is_reported_with_its_device(
    error: type[BaseException], transport: str
) -> None:
    first, second, third = outcomes(3, raise_elsewhere, error, transport)
    if error is MemoryError:  # of the action that failed, as in a stage
        shown = "device 1 failed at 1U@0: no room"
        assert second == shown
    else:
        shown = f"device 1 failed: {error.__name__}: no room"
        assert f"{error.__name__}: no room" in second.text
    assert first.startswith(shown)
    assert third.startswith(shown)


# an end


def end_on_one(transport: str, ending: int, end: Callable[[], object]) -> str:
    """In each rank: what the second step says when one rank does not come to it."""
    pipeline = pipeline_of(transport=transport)
    pipeline.step(*DATA[0])
    if dist.get_rank() == ending:
        end()
        return "left"
    return said(pipeline, 1)


def leave() -> None:
    """Return from the script."""


@both_transports
def test_a_rank_that_leaves_early_is_named(transport: str) -> None:
    first, second, third = run(3, end_on_one, transport, 1, leave)
    assert second == "left"
    sending = r"device 0 was waiting for device 1 to read 0F\d"
    own = f"({waited(0, '1B0', 1)}|{sending}|{waited(2, '1F0', 1)})"
    assert re.fullmatch(f"device 1 has left; {own}(; {own})?", first)
    assert re.fullmatch(f"device 1 has left; {own}(; {own})?", third)


@both_transports
def test_a_rank_whose_script_fails_between_steps_is_named(transport: str) -> None:
    first, second, third = outcomes(3, end_on_one, transport, 0, fail)
    assert "ValueError: out of luck" in first.text
    assert second == f"device 0 has left; {waited(1, '0F0', 0)}"
    assert third in (second, f"{second}; {waited(2, '1F0', 1)}"), "before it waits, or while"


def kill_one(transport: str) -> str:
    """In each rank: what it says when device 1 is killed at 1F2."""
    return said(pipeline_of(1, {2: kill}, transport=transport))


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@both_transports
def test_a_rank_that_is_killed_is_named(transport: str) -> None:
    first, second, third = run(3, kill_one, transport)
    assert second == Ended(-signal.SIGKILL)
    assert re.fullmatch(f"device 1 died; {waited(0, '1B[01]', 1)}", first)
    assert re.fullmatch(f"device 1 died; {waited(2, '1F[0-2]', 1)}", third)


# a stall


def stall_on_one(transport: str) -> tuple[str, str]:
    """In each rank: what both steps say when device 1 stalls at its first forward of each."""
    rank, store = dist.get_rank(), _get_default_store()
    trouble: dict[int, Callable[[], object]] = {
        0: lambda: time.sleep(2 * DEADLINE),
        6: lambda: store.wait(["said/0", "said/2"]),
    }
    deadline = 60.0 if rank == 1 else DEADLINE
    pipeline = pipeline_of(1, trouble, deadline=deadline, transport=transport)
    shown = said(pipeline, 0), said(pipeline, 1)
    store.set(f"said/{rank}", "")
    return shown


def stall_at_first(transport: str) -> str:
    """In each rank: what the first step says when device 1 stalls in it."""
    rank, store = dist.get_rank(), _get_default_store()

    def stall() -> None:
        if rank == 1:  # others look at the shapes of its stage, too
            store.wait(["said/0", "said/2"])

    trouble: dict[int, Callable[[], object]] = {0: stall}
    first_deadline = 60.0 if rank == 1 else DEADLINE
    pipeline = pipeline_of(1, trouble, first_deadline=first_deadline, transport=transport)
    shown = said(pipeline)
    store.set(f"said/{rank}", "")
    return shown


@both_transports
def test_a_first_step_has_a_deadline_of_its_own_and_says_what_takes_long(transport: str) -> None:
    first, _, third = run(3, stall_at_first, transport)
    why = r"nothing came within the deadline of 1 s of the first step, in which kernels are .*;"
    for shown in (first, third):
        assert re.match(why + r" first_deadline= allows for more;", shown)


@both_transports
def test_a_stall_is_reported_after_the_deadline_but_not_in_the_first_step(transport: str) -> None:
    first, second, third = run(3, stall_on_one, transport)
    assert [step for step, _ in (first, second, third)] == ["nothing"] * 3
    shown = r"nothing came within the deadline of 1 s; (.*; )?"
    assert re.fullmatch(shown + waited(0, "1B0", 1), first[1])
    assert re.fullmatch(shown + waited(2, "1F0", 1), third[1])
    assert re.match(shown, second[1]), "the one that stalled learns of it, too"
