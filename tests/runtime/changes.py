"""Small changes to programs, some of which leave them valid: what is decided by verification."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TypeAlias

import numpy as np

from tests.verify.mutations import mutations
from weft.errors import InputError
from weft.ir.actions import Action, Actions, Pair
from weft.ir.graph import Backward, Graph
from weft.ir.kinds import Kind
from weft.ir.lanes import Lane
from weft.ir.program import Program
from weft.lower import updates, wires

Slot: TypeAlias = Action | Pair
Change: TypeAlias = Callable[[Program, Random], Program]


def changed(program: Program, chosen: Random, changes: list[Change]) -> Program:
    """The program after one to three of these changes, as far as they apply."""
    for _ in range(chosen.randint(1, 3)):
        change = chosen.choice(changes)
        try:
            program = change(program, chosen)
        except InputError:  # what cannot even be written down
            continue
    return program


# orders


def swapped(program: Program, chosen: Random) -> Program:
    """Two neighbours of a lane change places."""
    return _edited(program, chosen, _swap)


def moved(program: Program, chosen: Random) -> Program:
    """An action stands somewhere else in its lane."""
    return _edited(program, chosen, _move)


def spoilt(program: Program, chosen: Random) -> Program:
    """One of the changes of which none leaves a program valid, unless it repeats."""
    return chosen.choice(list(mutations(program))).make()


# kinds


def split(program: Program, chosen: Random) -> Program:
    """A whole backward comes in two halves."""
    return _edited(program, chosen, _split)


def joined(program: Program, chosen: Random) -> Program:
    """The two halves of a backward become one."""
    return _edited(program, chosen, _join)


def recomputed(program: Program, chosen: Random) -> Program:
    """One more microbatch is recomputed, somewhere before its backward."""
    return _edited(program, chosen, _recompute)


def kept(program: Program, chosen: Random) -> Program:
    """One recomputation less."""
    return _edited(program, chosen, _keep)


def paired(program: Program, chosen: Random) -> Program:
    """Two neighbours share a slot."""
    return _edited(program, chosen, _pair)


def spanned(program: Program, chosen: Random) -> Program:
    """Two neighbours that do the same for microbatches side by side become one."""
    return _edited(program, chosen, _span)


# what lowering adds


def wired(program: Program, chosen: Random) -> Program:
    """With sends and receives, two of which may change places."""
    program = wires(program)
    return swapped(program, chosen) if chosen.random() < 0.5 else program


def updated(program: Program, chosen: Random) -> Program:
    """With updates, one of which may stand elsewhere."""
    program = updates(program)
    return moved(program, chosen) if chosen.random() < 0.5 else program


# programs as a whole


def frozen(program: Program, chosen: Random) -> Program:
    """A stage needs less of a backward than before, or more."""
    stages = list(program.graph.stages)
    index = chosen.randrange(len(stages))
    stages[index] = replace(stages[index], backward=chosen.choice([*Backward]))
    return replace(program, graph=Graph(tuple(stages), program.graph.edges))


def repeated(program: Program, chosen: Random) -> Program:
    """Two steps."""
    return program.unrolled(2)


def piped(program: Program, chosen: Random) -> Program:
    """A microbatch goes another way."""
    pipes = list(program.pipe_of)
    pipes[chosen.randrange(len(pipes))] = chosen.randrange(len(program.placement.pipes))
    return Program.build(
        program.name,
        program.placement,
        program.contents(),
        microbatches=program.microbatches,
        graph=program.graph,
        pipe_of=pipes,
    )


# of programs that repeat


def folded_elsewhere(program: Program, chosen: Random) -> Program:
    """Another prologue or body of one lane, or another shift."""
    period = program.period
    if period is None:
        return program
    lane, by = chosen.randrange(len(program.lanes)), chosen.choice([-1, 1])
    match chosen.randrange(5):
        case 0:
            period = replace(period, prologue=_plus(period.prologue, lane, by))
        case 1:
            period = replace(period, body=_plus(period.body, lane, by))
        case 2:  # the cut stands elsewhere, and the program is the same
            prologue = _plus(period.prologue, lane, by)
            period = replace(period, prologue=prologue)
        case 3:
            period = replace(period, microbatches=max(0, period.microbatches + by))
        case _:
            period = replace(period, versions=max(0, period.versions + by))
    return program.with_lanes(program.contents(), period=period)


def stashing_otherwise(program: Program, chosen: Random) -> Program:
    """A stash less, or one more."""
    return program.with_lanes(program.contents(), is_stashing=not program.is_stashing)


def renamed_versions(program: Program, chosen: Random) -> Program:
    """Everything that a stage does for a microbatch names another version."""
    rows = np.flatnonzero((program.actions.kind <= Kind.R) & (program.actions.version >= 0))
    if not len(rows):
        return program
    actions, row = program.actions, int(chosen.choice(rows.tolist()))
    mine = (actions.stage == actions.stage[row]) & (actions.microbatch == actions.microbatch[row])
    version = actions.version + chosen.choice([-1, 1]) * (mine & (actions.kind <= Kind.R))
    return _with(program, actions.replace(version=np.maximum(-1, version)))


SYNCHRONOUS: list[Change] = [
    swapped, swapped, moved, spoilt, split, joined, recomputed, kept, paired, spanned,
    wired, updated, frozen, repeated, piped,
]  # fmt: skip
ASYNCHRONOUS: list[Change] = [
    swapped, swapped, moved, spoilt, split, recomputed, kept, wired, folded_elsewhere,
    stashing_otherwise, renamed_versions,
]  # fmt: skip


# lanes as lists


def _edited(
    program: Program, chosen: Random, edit: Callable[[list[Slot], Random], list[Slot]]
) -> Program:
    """The program with one lane edited; a body that repeats keeps its place by length."""
    lanes = [lane for lane, actions in program.contents().items() if len(actions)]
    if not lanes:
        return program
    lane = chosen.choice(lanes)
    contents = program.contents()
    slots = edit(list(contents[lane].slots()), chosen)
    return _with_lane(program, lane, Actions.collect(slots))


def _with_lane(program: Program, lane: Lane, actions: Actions) -> Program:
    period = program.period
    more = len(actions) - len(program.contents()[lane])
    if period is not None and more:
        period = replace(period, body=_plus(period.body, program.lanes.index(lane), more))
    return program.with_lanes({**program.contents(), lane: actions}, period=period)


def _with(program: Program, actions: Actions) -> Program:
    return program.with_lanes(
        {
            lane: actions.take(np.flatnonzero(program.lane_of == index))
            for index, lane in enumerate(program.lanes)
        }
    )


def _plus(lengths: tuple[int, ...], lane: int, by: int) -> tuple[int, ...]:
    return tuple(length + by * (index == lane) for index, length in enumerate(lengths))


def _swap(slots: list[Slot], chosen: Random) -> list[Slot]:
    if len(slots) > 1:
        at = chosen.randrange(len(slots) - 1)
        slots[at : at + 2] = slots[at : at + 2][::-1]
    return slots


def _move(slots: list[Slot], chosen: Random) -> list[Slot]:
    slot = slots.pop(chosen.randrange(len(slots)))
    slots.insert(chosen.randint(0, len(slots)), slot)
    return slots


def _of(slots: list[Slot], chosen: Random, *kinds: Kind) -> int | None:
    """Where an action of these kinds stands alone."""
    found = [at for at, slot in enumerate(slots) if isinstance(slot, Action) and slot.kind in kinds]
    return chosen.choice(found) if found else None


def _split(slots: list[Slot], chosen: Random) -> list[Slot]:
    at = _of(slots, chosen, Kind.B)
    if at is not None:
        whole = slots[at]
        assert isinstance(whole, Action)
        slots[at] = whole._replace(kind=Kind.I)
        slots.insert(chosen.randint(at + 1, len(slots)), whole._replace(kind=Kind.W))
    return slots


def _join(slots: list[Slot], chosen: Random) -> list[Slot]:
    at = _of(slots, chosen, Kind.I)
    if at is not None:
        half = slots[at]
        assert isinstance(half, Action)
        slots[at] = half._replace(kind=Kind.B)
        slots = [slot for slot in slots if slot != half._replace(kind=Kind.W)]
    return slots


def _recompute(slots: list[Slot], chosen: Random) -> list[Slot]:
    at = _of(slots, chosen, Kind.B, Kind.I)
    if at is not None:
        backward = slots[at]
        assert isinstance(backward, Action)
        slots.insert(chosen.randint(max(0, at - 2), at), backward._replace(kind=Kind.R))
    return slots


def _keep(slots: list[Slot], chosen: Random) -> list[Slot]:
    found = [
        (at, slot.second if isinstance(slot, Pair) else None)
        for at, slot in enumerate(slots)
        if (slot.first if isinstance(slot, Pair) else slot).kind is Kind.R
    ]
    if found:
        at, rest = chosen.choice(found)
        slots[at : at + 1] = [] if rest is None else [rest]
    return slots


def _pair(slots: list[Slot], chosen: Random) -> list[Slot]:
    at = _of(slots, chosen, Kind.F, Kind.B, Kind.I, Kind.W)
    if at is not None and at + 1 < len(slots):
        first, second = slots[at : at + 2]
        if isinstance(first, Action) and isinstance(second, Action) and second.kind <= Kind.W:
            slots[at : at + 2] = [Pair(first, second)]
    return slots


def _span(slots: list[Slot], chosen: Random) -> list[Slot]:
    """Any two of a kind whose microbatches follow each other, at the place of the second."""
    singles = [slot for slot in slots if isinstance(slot, Action) and slot.microbatch is not None]
    pairs = [
        (one, other)
        for one in singles
        for other in singles
        if other == one._replace(microbatch=(one.microbatch or 0) + one.span, span=other.span)
        and one.kind <= Kind.R
    ]
    if pairs:
        one, other = chosen.choice(pairs)
        slots.remove(one)
        slots[slots.index(other)] = one._replace(span=one.span + other.span)
    return slots
