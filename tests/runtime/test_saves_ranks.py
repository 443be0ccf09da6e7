"""Saves in real processes: every rank writes what it holds, and any other layout reads it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch

from tests.runtime.models import batches
from tests.runtime.ranks import TRANSPORTS, Ended, run
from tests.runtime.saving import is_equal, pipeline_of, program_of, state_of, trained
from weft.errors import RankError, SaveError
from weft.runtime.saves import folder_of, newest, tensors
from weft.schedules import one_f_one_b

NAMES = ("chimera", "pipedream", "pipedream-2bw")
DATA = batches(12, 5)


def resumed_by_ranks(folder: str) -> dict[str, bool]:
    """In each rank: whether losses go on as they did, by schedule, over the transports in turn."""
    found = {}
    for index, name in enumerate(NAMES):
        program, run = program_of(name, 2), Path(folder) / name
        settings: dict[str, Any] = {"transport": TRANSPORTS[index % 2], "clip": None}
        with pipeline_of(program, **settings) as pipeline:
            losses = [pipeline.step(*DATA[0]).loss, pipeline.step(*DATA[1]).loss]
            pipeline.save(folder_of(run, 2), wait=False)
            losses += trained(pipeline, DATA[2:])
        with pipeline_of(program, seed=9, **settings) as resumed:
            resumed.load(folder_of(run, 2))
            found[name] = is_equal(losses[2:], trained(resumed, DATA[2:]))
    return found


def test_ranks_go_on_from_what_each_has_written(tmp_path: Path) -> None:
    """Also in this process alone: it finds the same weights, each of them written once."""
    assert run(2, resumed_by_ranks, str(tmp_path)) == [dict.fromkeys(NAMES, True)] * 2
    for name in NAMES:
        assert [path.name for path in (tmp_path / name).iterdir()] == ["step-000002"]
        here = pipeline_of(program_of(name, 2), clip=None)
        trained(here, DATA[:2])
        wanted = state_of(here)
        other = pipeline_of(program_of(name, 2), clip=None, seed=8)
        other.load(folder_of(tmp_path / name, 2))
        assert is_equal(state_of(other), wanted)


def killed_while_it_writes(folder: str) -> str:
    """In each rank: what a save ends with of which rank 1 has written a half."""
    pipeline = pipeline_of(one_f_one_b(devices=2, microbatches=4), deadline=5.0)
    pipeline.save(folder_of(folder, 0))
    trained(pipeline, DATA[:1])
    pipeline.save(folder_of(folder, 1), wait=False)
    if 1 in {stage for _, stage in pipeline.modules}:
        tensors.write = _half_written  # type: ignore[assignment]
    trained(pipeline, DATA[1:2])
    try:
        pipeline.save(folder_of(folder, 2))
    except (SaveError, RankError) as error:
        return str(error)
    return "nothing"


def _half_written(path: Path, values: object) -> Any:
    path.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_rank_that_dies_in_a_save_leaves_the_one_before(tmp_path: Path) -> None:
    survivor, killed = run(2, killed_while_it_writes, str(tmp_path))
    assert killed == Ended(-signal.SIGKILL)
    assert "device 1" in survivor
    assert newest(tmp_path) == folder_of(tmp_path, 1)
    assert {path.name for path in tmp_path.iterdir()} == {"step-000000", "step-000001"}


def refused_by_one(folder: str) -> tuple[str, int]:
    """In each rank: what a load ends with that only one of them cannot do; and what follows."""
    pipeline = pipeline_of(one_f_one_b(devices=2, microbatches=4))
    pipeline.save(folder)
    trained(pipeline, DATA[:1])
    if 1 in {stage for _, stage in pipeline.modules}:
        (Path(folder) / "__1_0.distcp").unlink()
    torch.distributed.barrier()
    try:
        pipeline.load(folder)
    except SaveError as error:
        trained(pipeline, DATA[1:2])
        return str(error), pipeline.steps
    return "nothing", pipeline.steps


def test_what_one_rank_refuses_all_refuse_and_go_on(tmp_path: Path) -> None:
    found = run(2, refused_by_one, str(tmp_path / "save"))
    assert {steps for _, steps in found} == {2}
    assert all("cannot be read" in reason for reason, _ in found)
