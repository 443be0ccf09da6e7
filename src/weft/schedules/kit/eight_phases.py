"""The eight phases that DualPipe and DualPipeV share.

A device serves two streams: 0 is the one whose pipe's start is nearer, 1 the other. In
DualPipe they are two pipes in opposite directions, in DualPipeV the two legs of a V.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from weft.cost import Share
from weft.ir.actions import Action, Pair
from weft.ir.kinds import Kind
from weft.schedules.kit.shape import Shape


class Stream(NamedTuple):
    """A stage of the device and the first of the microbatches that pass through it."""

    stage: int
    first: int


def _phases(place: int, places: int, length: int) -> list[tuple[str, int]]:
    """What a device repeats and how often: `F0&B1` is a pair, `W` the oldest weight gradient.

    The last device of a half has just computed what its first pair would read, so it runs
    the two one after the other.
    """
    outward = places - place - 1
    main = length - 2 * places + place + 1
    if outward == 0:
        steady = [("F0 B1 F1&B0", min(main, 1)), ("F0&B1 F1&B0", max(main - 1, 0))]
    else:
        steady = [("F0&B1 F1&B0", main)]
    whole, rest = divmod(place + 1, 2)  # the second half of the last backwards is split
    return [
        ("F0", 2 * outward),
        ("F0 F1", place + 1),
        ("I1 W F1", outward),
        *steady,
        ("B1 F1&B0", outward),
        ("B1 B0", whole),
        ("B1 I0", rest),
        ("I1 I0", whole),
        ("W I0", outward),
        ("W", place + 1),
    ]


def eight_phases(
    streams: tuple[Stream, Stream], *, place: int, places: int, length: int
) -> Iterator[Action | Pair]:
    """The lane of the device at `place` of `places` from its end, `length` microbatches each."""
    next_of = {f"{kind}{stream}": count() for kind in "FB" for stream in "01"}
    owed: deque[Action] = deque()

    def action(word: str) -> Action:
        if word == "W":
            return owed.popleft()
        kind, stream = Kind[word[0]], streams[int(word[1])]
        order = next_of[("F" if kind is Kind.F else "B") + word[1]]
        made = Action(stream.stage, kind, stream.first + next(order))
        if kind is Kind.I:
            owed.append(made._replace(kind=Kind.W))
        return made

    for words, repeats in _phases(place, places, length):
        for word in words.split() * repeats:
            members = [action(member) for member in word.split("&")]
            yield Pair(*members) if len(members) == 2 else members[0]


def idle_of(share: Share) -> float:
    """What the README of DualPipe counts for each pair of devices: F&B + B - 3W."""
    pair = share.pair if share.pair is not None else share.forward + share.backward
    return pair + share.backward - 3 * share.weight_grad


def is_exact(shape: Shape, share: Share) -> bool:
    """Where that count is exact: F = I, and pairs that save nothing."""
    is_plain = share.pair is None or share.pair == share.forward + share.backward
    return is_plain and share.forward == share.input_grad >= share.weight_grad
