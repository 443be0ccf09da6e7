"""Writing: a thread writes what this process has of a save, and the first one completes it.

    process 0    __0_0.distcp  part-00000.json  ── all parts ─> .metadata  weft.json ─> rename
    process 1    __1_0.distcp  part-00001.json  ── is it complete? ────────────────────────┘

Processes meet in the folder alone, so that training can go on meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import NamedTuple

from weft.errors import RankError, SaveError
from weft.runtime.ranks.blame import DEVICE, failure_of, named
from weft.runtime.saves import folders, tensors
from weft.runtime.saves.manifest import (
    Manifest,
    Run,
    SavePart,
    part_file,
    read_part,
    write_manifest,
    write_part,
)
from weft.runtime.saves.metadata import METADATA, write_metadata
from weft.runtime.saves.regions import Held
from weft.runtime.saves.tensors import ChunkName

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.25  # seconds between two looks at the folder
FAILED = "failed"  # a file with the reason


class SaveFolder(NamedTuple):
    """Where a save is written, what it will be called, and by how many processes.

    deadline  seconds after which nothing more is expected of a process that writes nothing
    noun      what a process is called
    """

    partial: Path
    folder: Path
    process: int
    processes: int
    deadline: float | None
    noun: str = DEVICE


class Writer:
    """A save that is being written.

    look  raises where another process has failed, for which nobody should wait
    """

    def __init__(
        self,
        place: SaveFolder,
        run: Run,
        part: SavePart,
        values: Mapping[ChunkName, Held],
        look: Callable[[], None],
    ) -> None:
        self._place, self._run, self._part, self._look = place, run, part, look
        self._values: Mapping[ChunkName, Held] | None = values
        self._error: BaseException | None = None
        self._is_written = self._has_left = False
        self._thread = Thread(target=self._write, name="weft-save")
        self._thread.start()

    def wait(self) -> None:
        """Wait until the save is complete; RankError where another process is to blame."""
        try:
            self._thread.join()
        except BaseException:  # of a signal: this process goes on without the save
            self._has_left = True
            raise
        if self._error is not None:
            kind = RankError if isinstance(self._error, RankError) else SaveError
            raise kind(f"{self._place.folder} was not saved: {self._reason()}") from self._error

    def _write(self) -> None:
        partial, folder, process, *_ = self._place
        try:
            self._write_own()
            if process == 0:
                self._complete()
            else:
                self._wait(folder.is_dir)
        except BaseException as error:
            self._error = error
            if self._has_left and self._is_written and process:
                return  # the others need nothing more of it
            with suppress(OSError):  # whoever waits notices as well that nothing comes
                _write_reason(partial, process, self._reason())
            if process == 0 or isinstance(error, RankError):
                time.sleep(2 * LONGEST_PAUSE)  # in which all others look at the reason
                folders.abandon(partial)

    def _reason(self) -> str:
        assert self._error is not None
        return failure_of(self._error, self._place.process, self._place.noun)

    def _write_own(self) -> None:
        assert self._values is not None
        partial, process = self._place.partial, self._place.process
        if self._values:
            found = tensors.write(partial / f"__{process}_0.distcp", self._values)
            self._part.tensors.update(found)
        self._values = None  # which may be copies
        write_part(partial, process, self._part)
        self._is_written = True

    def _complete(self) -> None:
        partial, folder, _, processes, *_ = self._place
        files = [part_file(partial, process) for process in range(processes)]
        self._wait(lambda: not self._missing())
        part = SavePart.joined([*map(read_part, files)])
        write_metadata(partial, part)
        for file in files:
            file.unlink()
        write_manifest(partial, Manifest(self._run, part))
        folders.commit(partial, folder)

    def _missing(self) -> list[int]:
        """Who has not written its part, until the first process joins them."""
        partial, _, _, processes, *_ = self._place
        if (partial / METADATA).exists():
            return []
        return [one for one in range(processes) if not part_file(partial, one).exists()]

    def _awaited(self) -> str:
        missing, noun = self._missing(), self._place.noun
        return f"{named(missing, noun)} to write" if missing else f"{noun} 0 to complete it"

    def _wait(self, is_done: Callable[[], bool]) -> None:
        """Wait for others for as long as they live, and write."""
        partial, pause = self._place.partial, FIRST_PAUSE
        sizes, since = _sizes(partial), time.monotonic()
        while not is_done():
            _refuse_failed(partial, is_done)
            self._look()
            time.sleep(pause)
            pause, now = min(2 * pause, LONGEST_PAUSE), _sizes(partial)
            if now != sizes:
                sizes, since = now, time.monotonic()
            deadline = self._place.deadline
            if deadline is not None and time.monotonic() - since > deadline:
                why = f"nothing came within the deadline of {deadline:g} s"
                what = f"{self._place.noun} {self._place.process} was waiting for {self._awaited()}"
                raise RankError(f"{why}; {what}")


def _refuse_failed(partial: Path, is_done: Callable[[], bool]) -> None:
    """Give up where another process has."""
    reason = partial / FAILED
    if reason.exists():
        raise SaveError(reason.read_text(encoding="utf-8"))
    if not partial.exists() and not is_done():
        raise SaveError("another process has given up")


def _write_reason(partial: Path, process: int, reason: str) -> None:
    """Let all others know why this process gives up: the whole reason, or none yet."""
    begun = partial / f"{FAILED}-{process}"
    begun.write_text(reason, encoding="utf-8")
    begun.rename(partial / FAILED)


def _sizes(partial: Path) -> dict[str, int]:
    found = dict[str, int]()
    with suppress(OSError):  # it was completed meanwhile
        for path in partial.iterdir():
            found[path.name] = path.stat().st_size
    return found
