"""What a case has left: processes, files, shared memory, sockets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import hosts

PRIVATE = ("tmp", "shm", "work")  # folders of a case in which its ranks have to leave nothing


def strays(sessions: Iterable[int]) -> list[int]:
    """The processes that live in the sessions of ranks."""
    wanted, found = {*sessions}, []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session, *_ = file.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        if int(session) in wanted and state != "Z":
            found.append(int(file.parent.name))
    return found


def files(folder: Path) -> list[str]:
    """What lies in the folders that ranks have for what is temporary."""
    found = (file for name in PRIVATE for file in (folder / name).rglob("*"))
    return [str(file.relative_to(folder)) for file in found]


def left(folder: Path, sessions: Sequence[int], names: Sequence[str]) -> list[str]:
    """All of it, once no rank lives, in words."""
    return [
        *(f"process {process}" for process in strays(sessions)),
        *(f"file {file}" for file in files(folder)),
        *(f"socket {line.strip()}" for name in names for line in hosts.sockets(name)),
    ]
