"""Namespaces of Linux: other clocks and other hosts on one machine, for those who may make them."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NEW_TIME, NEW_NETWORK = 0x80, 0x40000000
FOLDER = Path("/run/netns")


def _refused(*command: str) -> str:
    """What a command says that does not succeed; nothing for one that does."""
    if shutil.which(command[0]) is None:
        return f"there is no {command[0]}"
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    return done.stderr.strip() or f"{command[0]} failed" if done.returncode else ""


def _call(name: str, *arguments: int) -> None:
    """A call of the C library, for this process, which has one thread."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments):
        raise OSError(ctypes.get_errno(), name)


# clocks


def need_other_clocks() -> None:
    if reason := _refused("unshare", "--time", "--monotonic", "1", "--fork", "true"):
        pytest.skip(f"this needs a time namespace: {reason}")


def shift_clock(seconds: int) -> None:
    """Let the clock of this process, which has one thread, run ahead."""
    _call("unshare", NEW_TIME)
    Path("/proc/self/timens_offsets").write_text(f"monotonic {seconds} 0\n")
    _enter("/proc/self/ns/time_for_children", NEW_TIME)


def _enter(path: str | Path, kind: int) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        _call("setns", file, kind)
    finally:
        os.close(file)


# hosts


@contextmanager
def two_hosts() -> Iterator[list[str]]:
    """Two networks joined by a wire, 10.0.0.1 and 10.0.0.2 on it, with nothing else in reach."""
    names = [f"weft-{os.getpid()}-{end}" for end in "ab"]
    made = []
    try:
        for name in names:
            if reason := _refused("ip", "netns", "add", name):
                pytest.skip(f"this needs network namespaces: {reason}")
            made.append(name)
        _join(*names)
        yield names
    finally:
        for name in made:
            _ip("netns", "del", name)


def _join(one: str, other: str) -> None:
    """A wire between two namespaces; it goes with them."""
    _ip("-n", one, "link", "add", "wire", "type", "veth", "peer", "wire", "netns", other)
    for number, name in enumerate((one, other), start=1):
        _ip("-n", name, "addr", "add", f"10.0.0.{number}/24", "dev", "wire")
        for link in ("wire", "lo"):
            _ip("-n", name, "link", "set", link, "up")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)


def enter_host(name: str) -> None:
    """Put this process, which has one thread, onto a host."""
    _enter(FOLDER / name, NEW_NETWORK)
