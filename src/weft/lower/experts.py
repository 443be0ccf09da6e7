"""Experts: each layer cut into attention, dispatch, experts and combine, on two streams.

A forward alone, a pair of F and I (Kimi K2's five columns, the fifth is W), an I alone:

    compute   A_f     E_f       | A_f  E_b  E_f  A_b   W | E_b     A_b   W
    experts       D_f     C_f   | C_b  D_f  D_b  C_f     |     D_b
                                                           C_b

With several layers the first of F goes with the last of I, and so on; what one of them has more
of stands alone. A dense layer has no dispatch and no combine, and hides those of the other. W stays
whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from weft.errors import InputError
from weft.ir.actions import Action, Actions, Pair
from weft.ir.kinds import Kind, Layer, Part, Stream, segment
from weft.ir.lanes import Lane
from weft.ir.program import Content, Program

A, D, E, C = Part.ATTENTION, Part.DISPATCH, Part.EXPERTS, Part.COMBINE

MOST_LAYERS = 1024  # of a stage: their parts are packed into 12 bits

Layers: TypeAlias = int | Sequence[Layer]  # of a stage; a number of expert layers

_BACKWARDS = (Kind.B, Kind.I)
_FORWARDS = (Kind.F, Kind.R)


class _Column(NamedTuple):
    """One part of the slot's first (0) or second (1) action."""

    member: int
    part: Part


_Table: TypeAlias = dict[tuple[bool, ...], list[_Column]]

# What a layer does on each stream, by whether the actions of a slot run backward.
_COMPUTE: _Table = {
    (False,): [_Column(0, A), _Column(0, E)],
    (True,): [_Column(0, E), _Column(0, A)],
    (False, True): [_Column(0, A), _Column(1, E), _Column(0, E), _Column(1, A)],
    (False, False): [_Column(0, A), _Column(1, A), _Column(0, E), _Column(1, E)],
    (True, True): [_Column(0, E), _Column(1, E), _Column(0, A), _Column(1, A)],
}
_EXPERTS: _Table = {
    (False,): [_Column(0, D), _Column(0, C)],
    (True,): [_Column(0, C), _Column(0, D)],
    (False, True): [_Column(1, C), _Column(0, D), _Column(1, D), _Column(0, C)],
    (False, False): [_Column(0, D), _Column(1, D), _Column(0, C), _Column(1, C)],
    (True, True): [_Column(0, C), _Column(1, C), _Column(0, D), _Column(1, D)],
}


def experts(program: Program, *, layers: int | Sequence[Layers] = 1) -> Program:
    """The same program with every stage cut into the parts of its layers.

    layers  how many expert layers every stage has; or, for each stage, their number or all of its
            layers one by one, some of which may be dense

    Pairs are dissolved: what they overlap is now an order of parts on two streams.
    """
    by_stage = _by_stage(program, layers)
    if (program.actions.segment >= 0).any():
        raise InputError(f"{program.name} has stages that are cut into segments already")
    if program.period is not None:
        raise InputError(
            f"{program.name} repeats, as asynchronous schedules do, and cannot be cut into segments"
            f" yet; take a synchronous one"
        )
    lanes: dict[Lane, Content] = dict(program.contents())
    for lane, actions in program.contents().items():
        if lane.stream is Stream.COMPUTE:
            slots = list(actions.slots())
            lanes[lane] = Actions.collect(_parts(slots, _COMPUTE, by_stage))
            experts = Actions.collect(_parts(slots, _EXPERTS, by_stage))
            if len(experts):
                lanes[Lane(lane.device, Stream.EXPERTS)] = experts
    return program.with_lanes(lanes)


def _by_stage(program: Program, layers: int | Sequence[Layers]) -> list[Sequence[Layer]]:
    """The layers of each stage, in forward order."""
    given = [layers] * program.stages if isinstance(layers, int) else [*layers]
    if len(given) != program.stages:
        raise InputError(
            f"{program.name} has {program.stages} stages, and layers are given for {len(given)};"
            f" give one number for all, or an entry for each"
        )
    counts = [one if isinstance(one, int) else len(one) for one in given]
    if not all(1 <= count <= MOST_LAYERS for count in counts):
        wrong = next(count for count in counts if not 1 <= count <= MOST_LAYERS)
        raise InputError(
            f"{program.name}: a stage has at least 1 layer, at most {MOST_LAYERS}, not {wrong}"
        )
    return [[Layer.EXPERTS] * one if isinstance(one, int) else one for one in given]


def _parts(
    slots: list[Action | Pair], table: _Table, layers: Sequence[Sequence[Layer]]
) -> Iterator[Action]:
    for slot in slots:
        for members in _overlapping(slot):
            if members[0].kind in (*_FORWARDS, *_BACKWARDS):
                yield from _cut(members, table, [layers[member.stage] for member in members])
            elif table is _COMPUTE:
                yield from members


def _cut(
    members: list[Action], table: _Table, layers: Sequence[Sequence[Layer]]
) -> Iterator[Action]:
    """The parts of a slot: of each action one layer after the other, side by side."""
    is_backward = tuple(member.kind in _BACKWARDS for member in members)
    for step in range(max(map(len, layers))):
        for index, part in table[is_backward]:
            own = layers[index]
            layer = len(own) - 1 - step if is_backward[index] else step
            if 0 <= layer < len(own) and part in own[layer].value:
                yield members[index]._replace(segment=segment(layer, part))


def _overlapping(slot: Action | Pair) -> list[list[Action]]:
    """What of a slot may overlap, forwards before backwards; a backward waits for its own R."""
    if isinstance(slot, Action):
        return [[slot]]
    members = sorted(slot, key=lambda member: member.kind in _BACKWARDS)
    return [[member] for member in members] if members[0].kind is Kind.R else [members]
