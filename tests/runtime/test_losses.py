"""Losses: every rank learns every loss, and nobody waits but who asks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.runtime.meshes import meshes
from weft.errors import RankError
from weft.runtime.ranks.losses import LossReports


def losses(*microbatches: int) -> dict[int, Tensor]:
    return {microbatch: torch.tensor(microbatch / 8) for microbatch in microbatches}


def test_losses_of_all_reporters_are_read_by_microbatch() -> None:
    with meshes(3) as all_of_them:
        first, second, reader = (LossReports(mesh, (0, 1)) for mesh in all_of_them)
        for reports, microbatches in ((first, (3, 0)), (second, (1, 2))):
            reports.open(0, 4)
            reports.report(0, losses(*microbatches))
        assert reader.wait(reader.open(0, 4)) == [0.0, 0.125, 0.25, 0.375]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_losses_have_their_own_type_on_every_rank(dtype: torch.dtype) -> None:
    """Which may be more precise than that of the weights."""
    with meshes(2) as (sender, reader):
        sending, reading = LossReports(sender, (0,)), LossReports(reader, (0,))
        sending.open(0, 1)
        sending.report(0, {0: torch.tensor(0.5, dtype=dtype)})
        opened = reading.open(0, 1)
        assert reading.wait(opened) == [0.5]
        assert opened.dtype == dtype


def test_a_run_may_be_reported_before_it_is_opened_and_read_after_the_next() -> None:
    with meshes(2) as (sender, reader):
        sending, reading = LossReports(sender, (0,)), LossReports(reader, (0,))
        first = reading.open(0, 1)
        for run in range(3):
            sending.open(run, 1)
            sending.report(run, {0: torch.tensor(run / 8)})
        later = [reading.open(run, 1) for run in (1, 2)]
        assert reading.wait(later[1]) == [0.25]
        assert [reading.wait(run) for run in (first, *later)] == [[0.0], [0.125], [0.25]]


def test_what_is_complete_is_forgotten() -> None:
    """Only the result of a run keeps its losses."""
    with meshes(2) as (sender, reader):
        sending, reading = LossReports(sender, (0,)), LossReports(reader, (0,))
        for run in range(3):
            sending.open(run, 1)
            sending.report(run, losses(0))
            reading.wait(reading.open(run, 1))
        assert sending._runs == reading._runs == {}


def test_who_has_reported_may_leave() -> None:
    """It is the other one that is waited for."""
    with meshes(3) as all_of_them:
        first, _, reader = (LossReports(mesh, (0, 1)) for mesh in all_of_them)
        first.open(0, 2)
        first.report(0, losses(0))
        all_of_them[0].close()
        all_of_them[2].deadline = 0.01
        late = r"the deadline of 0\.01 s; device 2 was waiting for the losses of device 1"
        with pytest.raises(RankError, match=late):
            reader.wait(reader.open(0, 2))


def test_who_leaves_without_sending_is_named() -> None:
    with meshes(2) as (sender, reader):
        reading = LossReports(reader, (0,))
        sender.close()
        with pytest.raises(RankError, match=r"device 0 has left; .* for the losses of device 0"):
            reading.wait(reading.open(0, 1))
