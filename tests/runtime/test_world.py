"""Who runs which devices: the ranks of a process group, or one process that was asked to."""

from __future__ import annotations

import pytest

from tests.runtime.models import batches, linear, squared
from tests.runtime.ranks import run
from weft.errors import InputError
from weft.runtime import Pipeline
from weft.schedules import one_f_one_b

PROGRAM = one_f_one_b(devices=2, microbatches=4)
DATA = batches(4, 2)


@pytest.fixture
def by_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process as torchrun starts it, with no process group made."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    monkeypatch.setenv("WORLD_SIZE", "2")


@pytest.mark.usefixtures("by_torchrun")
def test_ranks_of_torchrun_that_would_each_train_the_whole_model_are_refused() -> None:
    text = r"torchrun has started 2 ranks, .* call torch\.distributed\.init_process_group\('gloo'\)"
    with pytest.raises(InputError, match=text):
        Pipeline(linear(2), PROGRAM, loss=squared)


@pytest.mark.usefixtures("by_torchrun")
def test_ranks_of_torchrun_may_ask_for_that() -> None:
    pipeline = Pipeline(linear(2), PROGRAM, loss=squared, transport="loopback")
    assert pipeline.step(*DATA[0]).loss.isfinite()


def test_a_single_process_of_torchrun_needs_no_group(
    monkeypatch: pytest.MonkeyPatch, by_torchrun: None
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    pipeline = Pipeline(linear(2), PROGRAM, loss=squared)
    assert pipeline.step(*DATA[0]).loss.isfinite()


def train_alone() -> tuple[int, str]:
    """In each rank: the devices that it runs, and the loss of a step that no other rank makes."""
    pipeline = Pipeline(linear(2), PROGRAM, loss=squared, transport="loopback")
    loss = float(pipeline.step(*DATA[0]).loss)
    return len(pipeline._world.devices), loss.hex()


def test_a_rank_of_a_group_may_run_all_devices() -> None:
    loss = float(Pipeline(linear(2), PROGRAM, loss=squared).step(*DATA[0]).loss)
    assert run(2, train_alone) == [(2, loss.hex())] * 2
