"""A slow link: two network namespaces joined by a wire of a given rate, with nothing else in reach.

    rank 0 ── 10.0.0.1 ══ wire ══ 10.0.0.2 ── rank 1

Each direction has its own rate, by tc's token bucket. Needs root, `ip` and `tc`.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path("/run/netns")
NEW_NETWORK = 0x40000000
FIRST = "10.0.0.1"
BURST, LEAST = 1e-3, 16_000  # seconds that may pass at once, and bytes
QUEUE = "2s"  # that packets wait at most, so that none is dropped


@contextmanager
def slow_link(megabits: float) -> Iterator[Sequence[str]]:
    """The names of two namespaces with such a link; both are gone afterwards."""
    names = [f"weft-{os.getpid()}-{end}" for end in "ab"]
    made = []
    try:
        for name in names:
            _call("ip", "netns", "add", name)
            made.append(name)
        _join(*names)
        for name in names:
            _limit(name, megabits)
        yield names
    finally:
        for name in made:
            _call("ip", "netns", "del", name)


def enter(name: str) -> None:
    """Put this process, which has one thread, into a namespace; gloo finds its end of the wire."""
    library = ctypes.CDLL(None, use_errno=True)
    with (FOLDER / name).open() as place:
        if library.setns(place.fileno(), NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "setns")
    os.environ["GLOO_SOCKET_IFNAME"] = "wire"


def _join(one: str, other: str) -> None:
    ends = ("type", "veth", "peer", "wire", "netns", other)
    _call("ip", "-n", one, "link", "add", "wire", *ends)
    for number, name in enumerate((one, other), start=1):
        _call("ip", "-n", name, "addr", "add", f"10.0.0.{number}/24", "dev", "wire")
        for link in ("wire", "lo"):
            _call("ip", "-n", name, "link", "set", link, "up")


def _limit(name: str, megabits: float) -> None:
    """Let packets out of a namespace leave at that rate."""
    burst = max(LEAST, round(megabits * 1e6 / 8 * BURST))
    rate = ("rate", f"{megabits:g}mbit", "burst", f"{burst}b", "latency", QUEUE)
    _call("tc", "-n", name, "qdisc", "add", "dev", "wire", "root", "tbf", *rate)


def _call(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}; this benchmark needs root")
