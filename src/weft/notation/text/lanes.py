"""The line of a lane, both ways.

    device 0: 0F0 0F1 1F1|1B0 0B0
    device 0 wire 0>1 activation: send:0-1F0 send:0-1F1
    device 0 wire: send:0-1F0 recv:0-1B0
    device 0: 0F0 [ 0F1 0B0 0U@0 ] 0B1

A periodic program, as in the last of these, encloses what repeats in brackets.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from weft.errors import InputError
from weft.ir.actions import COLUMNS, Actions
from weft.ir.kinds import Direction, Stream
from weft.ir.lanes import Channel, Lane, Period
from weft.ir.program import Program
from weft.notation.places import shown
from weft.notation.text.words import choice, counts
from weft.notation.tokens import read_token, written

_EXAMPLE = "device 0 wire 0>1 activation:"


class Body(NamedTuple):
    """How many actions of a lane stand before its brackets, and how many between them."""

    prologue: int
    length: int


# writing


def lane_lines(program: Program) -> Iterator[str]:
    """A line for each lane of a program."""
    for index, (lane, actions) in enumerate(program.contents().items()):
        words, joined = written(actions, program.graph.edges), actions.joined.tolist()
        if program.period is None:
            words = slots(words, joined)
        else:
            words = _bracketed(words, joined, program.period, index)
        yield " ".join([f"{lane_name(lane)}:", *words])


def _bracketed(words: list[str], joined: list[int], period: Period, lane: int) -> list[str]:
    start = period.prologue[lane]
    stop = start + period.body[lane]
    cuts = (slice(start), slice(start, stop), slice(stop, None))
    before, body, after = (slots(words[cut], joined[cut]) for cut in cuts)
    return [*before, "[", *body, "]", *after]


def lane_name(lane: Lane) -> str:
    """What stands before the colon."""
    words = ["device", str(lane.device)]
    if lane.stream is not Stream.COMPUTE or lane.channel is not None:
        words.append(lane.stream.value)
    if lane.channel is not None:
        source, destination, direction = lane.channel
        words += [f"{source}>{destination}", direction.value]
    return " ".join(words)


def slots(words: list[str], joined: list[int]) -> list[str]:
    """The words of actions with those of a pair made one."""
    if not any(joined):
        return words
    found: list[str] = []
    for word, is_second in zip(words, joined, strict=True):
        if is_second and found:
            found[-1] += f"|{word}"
        else:
            found.append(word)
    return found


# reading


def read_lane(words: list[str]) -> tuple[Lane, list[str]]:
    """The lane, and the words after its colon."""
    end = next((i for i, word in enumerate(words) if word.endswith(":")), None)
    if end is None:
        raise InputError("a lane reads `device 0: 0F0 0F1 0B0 0B1`")
    device, *others = " ".join(words[: end + 1])[:-1].split() or [""]
    (position,) = counts([device], _EXAMPLE, exactly=1)
    if len(others) not in (0, 1, 3):
        raise InputError(f"a lane on a channel reads `{_EXAMPLE}`")
    stream = choice(Stream, others[0]) if others else Stream.COMPUTE
    channel = _channel(*others[1:]) if len(others) == 3 else None
    return Lane(position, stream, channel), words[end + 1 :]


def _channel(ends: str, direction: str) -> Channel:
    source, destination = counts(ends.split(">"), _EXAMPLE, exactly=2)
    return Channel(source, destination, choice(Direction, direction))


def read_actions(words: list[str], edge_of: Mapping[tuple[int, int], int]) -> Actions:
    """The actions of a lane; brackets are none."""
    rows = array("i")
    for word in words:
        if word in ("[", "]"):
            continue
        first, *second = word.split("|", 2)
        if len(second) > 1:
            raise InputError(f"{shown(word)}: a pair has two actions")
        rows.extend((*read_token(first, edge_of), 0))
        if second:
            rows.extend((*read_token(second[0], edge_of), 1))
    table = np.array(rows, np.int32).reshape(-1, len(COLUMNS))
    return Actions(*(np.ascontiguousarray(column) for column in table.T))


def read_body(words: list[str]) -> Body | None:
    """Where the brackets of a lane stand; None where it has none."""
    brackets = [word for word in words if word in ("[", "]")]
    if not brackets:
        return None
    if brackets != ["[", "]"]:
        raise InputError("a lane encloses what repeats in one [ and one ]")
    start, stop = words.index("["), words.index("]")
    return Body(_length(words[:start]), _length(words[start + 1 : stop]))


def _length(words: list[str]) -> int:
    return len(words) + sum("|" in word for word in words)
