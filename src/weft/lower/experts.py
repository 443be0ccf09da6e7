"""Experts: each layer cut into attention, dispatch, experts and combine, on two streams.

A forward alone, a pair of F and I (Kimi K2's five columns, the fifth is W), an I alone:

    compute   A_f     E_f       | A_f  E_b  E_f  A_b   W | E_b     A_b   W
    experts       D_f     C_f   | C_b  D_f  D_b  C_f     |     D_b
                                                           C_b

With several layers the first of F goes with the last of I, and so on; W stays whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from weft.errors import InputError
from weft.ir.actions import Action, Actions, Pair
from weft.ir.kinds import Kind, Part, Stream, segment
from weft.ir.lanes import Lane
from weft.ir.program import Content, Program

A, D, E, C = Part.ATTENTION, Part.DISPATCH, Part.EXPERTS, Part.COMBINE

MOST_LAYERS = 1024  # of a stage: their parts are packed into 12 bits

_BACKWARDS = (Kind.B, Kind.I)
_FORWARDS = (Kind.F, Kind.R)


class _Column(NamedTuple):
    """One part of the slot's first (0) or second (1) action."""

    member: int
    part: Part


# What a layer does on each stream, by whether the actions of a slot run backward.
_COMPUTE: dict[tuple[bool, ...], list[_Column]] = {
    (False,): [_Column(0, A), _Column(0, E)],
    (True,): [_Column(0, E), _Column(0, A)],
    (False, True): [_Column(0, A), _Column(1, E), _Column(0, E), _Column(1, A)],
    (False, False): [_Column(0, A), _Column(1, A), _Column(0, E), _Column(1, E)],
    (True, True): [_Column(0, E), _Column(1, E), _Column(0, A), _Column(1, A)],
}
_EXPERTS: dict[tuple[bool, ...], list[_Column]] = {
    (False,): [_Column(0, D), _Column(0, C)],
    (True,): [_Column(0, C), _Column(0, D)],
    (False, True): [_Column(1, C), _Column(0, D), _Column(1, D), _Column(0, C)],
    (False, False): [_Column(0, D), _Column(1, D), _Column(0, C), _Column(1, C)],
    (True, True): [_Column(0, C), _Column(1, C), _Column(0, D), _Column(1, D)],
}


def experts(program: Program, *, layers: int = 1) -> Program:
    """The same program with every stage cut into `layers` layers of four parts.

    Pairs are dissolved: what they overlap is now an order of parts on two streams.
    """
    if not 1 <= layers <= MOST_LAYERS:
        raise InputError(
            f"{program.name}: a stage has at least 1 layer, at most {MOST_LAYERS}, not {layers}"
        )
    if (program.actions.segment >= 0).any() or program.period is not None:
        raise InputError(f"{program.name}: only whole stages of a program written out can be cut")
    lanes: dict[Lane, Content] = dict(program.contents())
    for lane, actions in program.contents().items():
        if lane.stream is Stream.COMPUTE:
            slots = list(actions.slots())
            lanes[lane] = Actions.collect(_parts(slots, _COMPUTE, layers))
            experts = Actions.collect(_parts(slots, _EXPERTS, layers))
            lanes[Lane(lane.device, Stream.EXPERTS)] = experts
    return program.with_lanes(lanes)


def _parts(
    slots: list[Action | Pair], table: dict[tuple[bool, ...], list[_Column]], layers: int
) -> Iterator[Action]:
    for slot in slots:
        members = _forward_first(slot)
        if members[0].kind in (*_FORWARDS, *_BACKWARDS):
            yield from _cut(members, table, layers)
        elif table is _COMPUTE:
            yield from members


def _cut(
    members: list[Action], table: dict[tuple[bool, ...], list[_Column]], layers: int
) -> Iterator[Action]:
    backward = [member.kind in _BACKWARDS for member in members]
    for step in range(layers):
        for index, part in table[tuple(backward)]:
            layer = layers - 1 - step if backward[index] else step
            yield members[index]._replace(segment=segment(layer, part))


def _forward_first(slot: Action | Pair) -> list[Action]:
    """The actions of a slot; forwards stand before backwards."""
    members = [slot] if isinstance(slot, Action) else list(slot)
    return sorted(members, key=lambda member: member.kind in _BACKWARDS)
