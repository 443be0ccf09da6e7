"""Blame: how ranks name each other, and what went wrong, to each other."""

from __future__ import annotations

from collections.abc import Iterable

from weft.errors import WeftError

MOST_NAMED = 15
DEVICE, RANK = "device", "rank"  # in a pipeline; in a mesh with several of them


def failure_of(error: BaseException, rank: int, noun: str = DEVICE) -> str:
    """What other ranks receive; an error that is not Weft's own does not say where it is from."""
    if isinstance(error, WeftError):
        return str(error)
    what = ": ".join(filter(None, (type(error).__name__, str(error))))
    return f"{noun} {rank} failed: {what}"


def devices_of(ranks: Iterable[int]) -> str:
    """The devices by name, as in `devices 1 and 3`; of many the first ones, and how many more."""
    return named(ranks, DEVICE)


def named(ranks: Iterable[int], noun: str) -> str:
    """The same of whatever they are called."""
    *most, last = map(str, sorted(ranks))
    if len(most) > MOST_NAMED:
        most, last = most[:MOST_NAMED], f"{len(most) + 1 - MOST_NAMED} more"
    return f"{noun}s {', '.join(most)} and {last}" if most else f"{noun} {last}"
