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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import pytest

from weft.cost import Share
from weft.notation import to_json
from weft.schedules import one_f_one_b
from weft.train.signals import clearing_up, heeding, noted

SIZES = "-d 2 -n 2 --layers 2 --hidden 8 --heads 1 --context 8 --steps 20000 --cost cost.json"
COST = to_json(Share().cost(one_f_one_b(devices=2, microbatches=2)))  # nothing is profiled first
ALONE = [sys.executable, "-m", "weft", "train"]
LAUNCHER = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
LAUNCHED = [sys.executable, *LAUNCHER, "-m", "weft", "train"]

End: TypeAlias = Callable[[subprocess.Popen[bytes]], None]


@contextmanager
def training(command: list[str], folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A run that goes on for minutes, in its first steps, and its terminal."""
    (folder / "cost.json").write_text(COST)
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


def interrupted(process: subprocess.Popen[bytes]) -> None:
    """As a terminal does it, to all of them."""
    os.killpg(process.pid, signal.SIGINT)


@needs_proc
def test_an_interrupt_of_torchrun_leaves_no_process(tmp_path: Path) -> None:
    """Where each rank ends by itself; a signal to torchrun alone is torchrun's to pass on."""
    with training(LAUNCHED, tmp_path) as (process, terminal):
        interrupted(process)
        assert at_end(terminal)
        assert process.wait(timeout=10) != 0
    assert was_saved(tmp_path)


def was_saved(folder: Path) -> bool:
    """Whether a run is saved after the last step that it has written, and nothing is half there."""
    lines = (folder / "runs" / "1f1b" / "metrics.jsonl").read_text().splitlines()
    names = [path.name for path in (folder / "runs" / "1f1b" / "saves").iterdir()]
    return names == [f"step-{len(lines):06d}"]


@needs_proc
@pytest.mark.parametrize(
    ("end", "status"),
    [
        (interrupted, 130),
        (subprocess.Popen.terminate, 143),
        (subprocess.Popen.kill, -signal.SIGKILL),
    ],
)
def test_a_signal_leaves_neither_process_nor_folder(end: End, status: int, tmp_path: Path) -> None:
    with training(ALONE, tmp_path) as (process, terminal):
        assert [*tmp_path.glob("weft-*")] != []
        end(process)
        assert at_end(terminal)
        assert process.wait(timeout=10) == status
    assert [*tmp_path.glob("weft-*")] == []
    assert (tmp_path / "runs" / "1f1b" / "metrics.jsonl").exists()
    assert status < 0 or was_saved(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_would_end_a_process_at_once_lets_it_clear_up(number: signal.Signals) -> None:
    """One that hangs up does what the one above that terminates does."""
    with pytest.raises(SystemExit) as raised, clearing_up():
        signal.raise_signal(number)
    assert raised.value.code == 128 + number
    assert signal.getsignal(number) == signal.SIG_DFL


def test_a_second_signal_ends_at_once_unless_it_is_the_same_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A terminal signals all processes, and torchrun passes the signal on besides."""
    with heeding() as request:
        request.pass_on = noted
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert request.number == signal.SIGINT
        monkeypatch.setattr("weft.train.signals.SAME", -1.0)
        with pytest.raises(SystemExit) as raised:
            signal.raise_signal(signal.SIGTERM)
    assert raised.value.code == 143
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


@needs_proc
def test_a_rank_that_is_killed_ends_the_run(tmp_path: Path) -> None:
    with training(ALONE, tmp_path) as (process, terminal):
        ranks = [one for one in descendants(process.pid) if "spawn_main" in command_of(one)]
        os.kill(ranks[1], signal.SIGKILL)
        assert at_end(terminal)
        assert process.wait(timeout=10) == 2


def command_of(process: int) -> str:
    return Path(f"/proc/{process}/cmdline").read_text()
