"""Folders: where the saves of a run lie, which of them are complete, and how one becomes so.

    out/step-000010/                   complete: it got its name when all of it was written
    out/.step-000020.3f9c2a.partial/   being written, or left by a run that ended meanwhile

Knows names and files; knows nothing of what is in them.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from weft.errors import InputError, SaveError

MANIFEST = "weft.json"  # written last: a folder without it is not a save
STEP = re.compile(r"step-(\d+)")
PARTIAL = re.compile(r"\.(.+)\.[0-9a-f]+\.partial")


def folder_of(run: str | Path, updates: int) -> Path:
    """Where the save after as many updates lies among those of a run."""
    return Path(run) / f"step-{updates:06d}"


def newest(run: str | Path) -> Path | None:
    """The complete save of a run with the most updates, if there is one."""
    return max(_complete(Path(run)), key=_updates, default=None)


def damaged(run: str | Path) -> Path | None:
    """A folder in the place of a save after the newest one that is none, if there is any.

    A save has its name only once it is whole, so something else has taken part of this one away.
    """
    complete = newest(run)
    after = -1 if complete is None else _updates(complete)
    found = (path for path in _places(Path(run)) if path.is_dir() and any(path.iterdir()))
    return min((path for path in found if _updates(path) > after), key=_updates, default=None)


def prune(run: str | Path, *, keep: int) -> None:
    """Remove all but the newest saves of a run, and what earlier saves left incomplete.

    A save that is being written stays, as it is newer than all complete ones.
    """
    if keep < 1:
        raise InputError(f"keep={keep}: at least one save has to be kept")
    found = sorted(_complete(Path(run)), key=_updates)
    for path in found[:-keep]:
        _remove(path)
    for path in _incomplete(Path(run)):
        match = PARTIAL.fullmatch(path.name)
        step = match and STEP.fullmatch(match[1])
        if step and found and int(step[1]) <= _updates(found[-1]):
            shutil.rmtree(path, ignore_errors=True)


def clean(run: str | Path) -> None:
    """Remove all incomplete saves of a run, when none is being written."""
    for path in _incomplete(Path(run)):
        shutil.rmtree(path, ignore_errors=True)


def begin(folder: Path) -> Path:
    """An empty folder beside the one that a save shall have; refuse to write over anything."""
    try:
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise SaveError(
                f"{folder} is there already, and nothing is written over: give another folder, as"
                f" weft.runtime.saves.folder_of(run, updates) names them"
            )
        partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
        partial.mkdir(parents=True)
    except OSError as error:
        raise SaveError(f"{folder} cannot be made: {error}") from error
    return partial


def commit(partial: Path, folder: Path) -> None:
    """Give a save its name, in one step, once all of it is on the disk."""
    synchronise(partial)
    partial.rename(folder)
    synchronise(folder.parent)


def abandon(partial: Path) -> None:
    """Leave nothing of a save that failed; any process may, as none can complete it then."""
    with suppress(OSError):
        _remove(partial)


def synchronise(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _complete(run: Path) -> Iterator[Path]:
    return (path for path in _places(run) if (path / MANIFEST).is_file())


def _places(run: Path) -> Iterator[Path]:
    """What is called as a save is."""
    for path in run.iterdir() if run.is_dir() else ():
        if STEP.fullmatch(path.name):
            yield path


def _incomplete(run: Path) -> Iterator[Path]:
    for path in run.iterdir() if run.is_dir() else ():
        if PARTIAL.fullmatch(path.name) and path.is_dir():
            yield path


def _updates(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _remove(path: Path) -> None:
    """Remove a folder; what is left of it if that is interrupted is no complete save."""
    match = PARTIAL.fullmatch(path.name)
    name = path.name if match is None else match[1]
    removed = path.with_name(f".{name}.{secrets.token_hex(4)}.partial")
    path.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)
