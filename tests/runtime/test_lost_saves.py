"""A save that is not completed: every process says why, and waits but once for one that stalls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch.distributed as dist

from tests.runtime.models import batches, linear, plain_descent, squared
from tests.runtime.ranks import run
from weft.errors import RankError, SaveError
from weft.runtime import Pipeline
from weft.runtime.saves import writer
from weft.runtime.saves.manifest import Run, SavePart, write_part
from weft.runtime.saves.writer import SaveFolder, Writer
from weft.schedules import one_f_one_b

PARTIAL = ".save.partial"
RUN = Run(program="1f1b", updates=1, position=0, seed=0, scale=None, extra={})


def nothing() -> None:
    """No other process has failed."""


def not_saved(folder: Path, *, process: int, written: Sequence[int]) -> str:
    """What a save says when these of three processes have written their parts, and no more comes.

    A wait of ranks has one deadline: a second one, to agree on the error, would be too long.
    """
    partial = folder.with_name(PARTIAL)
    partial.mkdir()
    for other in written:
        write_part(partial, other, SavePart())
    place = SaveFolder(partial, folder, process, processes=3, deadline=0.1)
    with pytest.raises(RankError) as caught:
        Writer(place, RUN, SavePart(), {}, nothing).wait()
    return str(caught.value)


@pytest.mark.parametrize(
    ("process", "written", "what"),
    [
        (0, [1], "device 2 to write"),
        (1, [0], "device 2 to write"),
        (1, [0, 2], "device 0 to complete it"),
    ],
)
def test_whoever_stalls_in_a_save_is_named_as_in_any_wait(
    process: int, written: list[int], what: str, tmp_path: Path
) -> None:
    folder = tmp_path / "save"
    why = f"nothing came within the deadline of 0.1 s; device {process} was waiting for {what}"
    said = not_saved(folder, process=process, written=written)
    assert said == f"{folder} was not saved: {why}"


def test_a_process_that_leaves_after_its_part_is_written_does_not_fail_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is interrupted while it waits for them, and closes its pipeline."""
    partial, is_closed = tmp_path / PARTIAL, Event()
    partial.mkdir()

    def look() -> None:
        is_closed.wait()
        raise RankError("this pipeline is closed: make another one to go on")

    def interrupted() -> None:
        raise KeyboardInterrupt

    made = Writer(SaveFolder(partial, tmp_path / "save", 1, 2, None), RUN, SavePart(), {}, look)
    with monkeypatch.context() as patch:
        patch.setattr(made._thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made.wait()
    is_closed.set()
    made._thread.join()
    assert [file.name for file in partial.iterdir()] == ["part-00001.json"]


def fail_to_complete(folder: Path) -> str:
    """In each rank: what a save says when the first one cannot complete it."""

    def fail(*_: Any) -> None:
        raise OSError("no room")

    if dist.get_rank() == 0:
        vars(writer)["write_metadata"] = fail
    program = one_f_one_b(devices=2, microbatches=4)
    pipeline = Pipeline(linear(2), program, loss=squared, optimizer=plain_descent)
    pipeline.step(*batches(4, 1)[0])
    try:
        pipeline.save(folder)
    except SaveError as error:
        return str(error)
    return "nothing"


def test_every_process_says_why_the_first_could_not_complete_a_save(tmp_path: Path) -> None:
    folder = tmp_path / "save"
    why = f"{folder} was not saved: device 0 failed: OSError: no room"
    assert run(2, fail_to_complete, folder) == [why, why]
    assert not any(tmp_path.iterdir())
