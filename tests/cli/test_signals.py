"""Whoever ends `weft train` ends all its processes, and nothing of them is left.

All of them write to one terminal, which is at its end when the last of them is gone: nobody has
to look at a clock.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

SIZES = "-d 2 -n 2 --layers 2 --hidden 8 --heads 1 --context 8 --steps 20000"
ALONE = [sys.executable, "-m", "weft", "train"]
LAUNCHER = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
LAUNCHED = [sys.executable, *LAUNCHER, "-m", "weft", "train"]


@contextmanager
def training(command: list[str], folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A run that goes on for minutes, in its first steps, and its terminal."""
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(
        [*command, *SIZES.split()],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env={**os.environ, "TERM": "xterm", "TMPDIR": str(folder)},
        start_new_session=True,
    )
    os.close(theirs)
    left = [process.pid]
    try:
        shown = b""
        with suppress(OSError):  # it ended before
            while b"loss" not in shown:
                shown += os.read(terminal, 4096)
        assert b"loss" in shown, shown.decode()
        left += descendants(process.pid)
        yield process, terminal
    finally:
        for one in left:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        process.wait()
        os.close(terminal)


def descendants(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [one for child in map(int, listed) for one in (child, *descendants(child))]


def at_end(terminal: int) -> bool:
    """Whether nobody has it open any more; waits until then."""
    with suppress(OSError):
        while os.read(terminal, 4096):
            pass
    return True


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", [ALONE, LAUNCHED], ids=["weft", "torchrun"])
def test_a_signal_leaves_no_process(
    command: list[str], number: signal.Signals, tmp_path: Path
) -> None:
    with training(command, tmp_path) as (process, terminal):
        if number is signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        assert at_end(terminal)
        assert process.wait(timeout=10) != 0


@needs_proc
@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=str
)
def test_a_signal_leaves_no_folder(number: signal.Signals, tmp_path: Path) -> None:
    with training(ALONE, tmp_path) as (process, terminal):
        assert [*tmp_path.glob("weft-*")] != []
        process.send_signal(number)
        assert at_end(terminal)
        process.wait(timeout=10)
    assert [*tmp_path.glob("weft-*")] == []


@needs_proc
def test_a_rank_that_is_killed_ends_the_run(tmp_path: Path) -> None:
    with training(ALONE, tmp_path) as (process, terminal):
        ranks = [one for one in descendants(process.pid) if "spawn_main" in command_of(one)]
        os.kill(ranks[1], signal.SIGKILL)
        assert at_end(terminal)
        assert process.wait(timeout=10) == 2


def command_of(process: int) -> str:
    return Path(f"/proc/{process}/cmdline").read_text()
