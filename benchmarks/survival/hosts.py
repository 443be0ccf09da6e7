"""Hosts: network namespaces of Linux, for those who may make them; a wire between two of them.

    host 0  10.0.0.1 ──── wire ──── 10.0.0.2  host 1

Every case has its own, so that a socket that is left belongs to it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

FOLDER = Path("/run/netns")
WIRE, LOOPBACK = "wire", "lo"
NEW_MOUNTS, NEW_NETWORK = 0x20000, 0x40000000
BIND, RECURSIVE, PRIVATE = 0x1000, 0x4000, 0x40000  # of mount(2)
GET_FLAGS, SET_FLAGS, IS_UP = 0x8913, 0x8914, 1  # of netdevice(7)
REQUEST = struct.Struct("16sh14x")

_numbers = count()


# in the campaign


def are_allowed() -> bool:
    """Whether this process may make namespaces."""
    if shutil.which("ip") is None:
        return False
    with made(1, must=False) as names:
        return bool(names)


@contextmanager
def made(hosts: int, *, must: bool = True) -> Iterator[list[str]]:
    """Names of new hosts, two of them joined by a wire; none where that is refused."""
    number = next(_numbers)
    names = [f"weft-{os.getpid()}-{number}-{host}" for host in range(hosts)]
    done: list[str] = []
    try:
        for name in names:
            _ip("netns", "add", name)
            done.append(name)
            _ip("-n", name, "link", "set", LOOPBACK, "up")
        if hosts == 2:
            _join(*names)
    except (OSError, subprocess.SubprocessError):
        if must:
            _remove(done)
            raise
    try:
        yield done
    finally:
        _remove(done)


def _join(one: str, other: str) -> None:
    """A wire between two namespaces; it goes with them."""
    _ip("-n", one, "link", "add", WIRE, "type", "veth", "peer", WIRE, "netns", other)
    for number, name in enumerate((one, other), start=1):
        _ip("-n", name, "addr", "add", f"10.0.0.{number}/24", "dev", WIRE)
        _ip("-n", name, "link", "set", WIRE, "up")


def _remove(names: Sequence[str]) -> None:
    for name in names:
        _ip("netns", "del", name)


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=30)
    return done.stdout


def sockets(name: str) -> list[str]:
    """The sockets of a host that a process still holds: those of Unix, and of TCP."""
    found = _ip("netns", "exec", name, "cat", "/proc/net/unix", "/proc/net/tcp")
    near, far = found.split("  sl ")
    held = [line for line in far.splitlines()[1:] if line.split()[9] != "0"]  # of a process
    return near.splitlines()[1:] + held


# in a rank, which has one thread


def enter(name: str) -> None:
    """Put this process onto a host."""
    file = os.open(FOLDER / name, os.O_RDONLY)
    try:
        _call("setns", file, NEW_NETWORK)
    finally:
        os.close(file)


def keep_shared_memory_in(folder: Path) -> None:
    """Let this process find a folder where /dev/shm was, so that what it leaves is seen."""
    _call("unshare", NEW_MOUNTS)
    _call("mount", b"none", b"/", None, RECURSIVE | PRIVATE, None)
    _call("mount", os.fsencode(folder), b"/dev/shm", None, BIND, None)


def cut() -> None:
    """Take down this host's end of the wire."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        request = REQUEST.pack(WIRE.encode(), 0)
        _, flags = REQUEST.unpack(fcntl.ioctl(asking, GET_FLAGS, request))
        fcntl.ioctl(asking, SET_FLAGS, REQUEST.pack(WIRE.encode(), flags & ~IS_UP))


def _call(name: str, *arguments: int | bytes | None) -> None:
    """A call of the C library."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments):
        raise OSError(ctypes.get_errno(), name)
