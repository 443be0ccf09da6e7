"""The metrics of a run in a file: a line of JSON for each step, written as soon as it is over.

A run that goes on after some steps keeps their lines, and drops those of later ones: they are
computed again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from weft.cost.checks import quoted
from weft.errors import InputError
from weft.train.outcome import Metrics


class MetricsFile:
    """Lines of a file, of which those up to some step are there."""

    def __init__(self, path: Path, *, after: int) -> None:
        self.earlier = metrics_until(path, after)
        beside = path.with_name(f".{path.name}.partial")
        beside.write_text("".join(map(_line, self.earlier)), encoding="utf-8")
        beside.replace(path)
        self._file = path.open("a", encoding="utf-8")

    def add(self, metrics: Metrics) -> None:
        """Whoever ends this process, the line is in the file."""
        self._file.write(_line(metrics))
        self._file.flush()

    def synchronise(self) -> None:
        """Wait until all lines are on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def metrics_until(path: Path, step: int) -> list[Metrics]:
    """The metrics of a file up to a step, each once; InputError where one is missing."""
    found = [one for one in _read(path) if one.step <= step]
    if [one.step for one in found] != [*range(1, step + 1)]:
        raise InputError(
            f"{path} should have a line for each of the {step} steps that were saved, and has"
            f" others; begin a run in another folder (--out)"
        )
    return found


def _read(path: Path) -> Iterator[Metrics]:
    """The lines of a file, without one that was cut off."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                return
            try:
                yield Metrics(**json.loads(line))
            except (TypeError, ValueError):
                raise InputError(
                    f"{path}, line {number}, is damaged: {quoted(line.strip())} are no metrics of"
                    f" a step; begin a run in another folder (--out)"
                ) from None


def _line(metrics: Metrics) -> str:
    return json.dumps(asdict(metrics), allow_nan=False) + "\n"
