"""Memory: no file takes more than a gigabyte to be refused, however it is made."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.cli.running import process
from weft.notation.limits import MOST_BYTES

MOST_MEMORY = 1 << 30
TEXT = "weft program 1\nmicrobatches 2\ngraph chain 2\nplace 0 1\ndevice 0:"
JSON = '{"format": "weft.program", "version": 1, "lanes": ['
FILES = {
    "words.txt": (TEXT, " ab"),
    "actions.txt": (TEXT, " 0F0"),
    "lines.txt": (TEXT, "\n"),
    "signs.txt": (TEXT, " \N{GRINNING FACE}"),
    "cells.csv": ("0F0", ",0F1"),
    "rows.csv": ("0F0", "\n0F0"),
    "lists.json": (JSON, "[],"),
    "objects.json": (JSON, "{},"),
    "numbers.json": (JSON, "1000,"),
    "keys.json": ('{"a": 1', ', "b": 1'),
}


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))


@pytest.mark.parametrize("name", FILES)
def test_a_long_file_is_refused_within_bounds(name: str, tmp_path: Path) -> None:
    head, again = FILES[name]
    path = tmp_path / name
    path.write_text(head + again * ((MOST_BYTES - len(head)) // len(again.encode())))
    done = process("verify", str(path), preexec_fn=_limit, env={"OPENBLAS_NUM_THREADS": "1"})
    assert done.returncode == 2, done.stderr[-300:]
    assert "that Weft reads" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["verify", "simulate"])
def test_a_short_file_that_speaks_of_millions_is_refused_within_bounds(
    command: str, tmp_path: Path
) -> None:
    path = tmp_path / "program.txt"
    path.write_text(
        "weft program 1\nmicrobatches 4000000\ngraph chain 1\nplace 0\ndevice 0: 0F0 0B0\n"
    )
    done = process(command, str(path), preexec_fn=_limit, env={"OPENBLAS_NUM_THREADS": "1"})
    assert done.returncode == 2, done.stderr[-300:]
    assert "1 forwards of the 4,000,000" in done.stderr
