"""Mutations: every small way to spoil a valid program, none of which may pass.

swap       an action and one after it in its lane that reads what it computes
drop       any action; a recomputation is optional, so it may go
duplicate  any action
retarget   another stage, microbatch or version
move       to another lane of its stream
cross      two neighbours on a wire
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from weft.ir.actions import Actions, Index
from weft.ir.kinds import Kind, Stream
from weft.ir.lanes import Lane
from weft.ir.program import Program
from weft.notation.tokens import written


class Mutation(NamedTuple):
    """A spoilt program, made when asked for."""

    name: str
    make: Callable[[], Program]


Change: TypeAlias = tuple[Callable[..., Program], int, *tuple[int | str, ...]]


def mutations(program: Program) -> Iterator[Mutation]:
    """All mutations of a program without a period."""
    words = written(program.actions, program.graph.edges)
    for make, row, *others in _changes(program):
        name = " ".join([program.name, words[row], make.__name__.strip("_"), *map(str, others)])
        yield Mutation(name, partial(make, program, row, *others))


def _changes(program: Program) -> Iterator[Change]:
    dependencies, slots, lanes = program.dependencies, program.slot_of, program.lane_of
    for consumer, producer in zip(dependencies.consumer, dependencies.producer, strict=True):
        if lanes[consumer] == lanes[producer] and slots[producer] < slots[consumer]:
            yield _swapped, int(producer), int(consumer)
    for row in range(len(program)):
        if program.actions.kind[row] != Kind.R:
            yield _dropped, row
        yield _duplicated, row
        yield from _retargets(program, row)
        yield from _moves(program, row)
        yield from _crossings(program, row)


def _retargets(program: Program, row: int) -> Iterator[Change]:
    action, microbatches = program.actions[row], program.microbatches * program.steps
    if program.stages > 1:
        yield _retargeted, row, "stage", (action.stage + 1) % program.stages
    if action.microbatch is not None:
        yield _retargeted, row, "microbatch", action.microbatch + microbatches
    if action.microbatch is not None and microbatches > 1:
        yield _retargeted, row, "microbatch", (action.microbatch + 1) % microbatches
    if action.version is not None:
        yield _retargeted, row, "version", action.version + 1


def _moves(program: Program, row: int) -> Iterator[Change]:
    own = program.lanes[program.lane_of[row]]
    for index, lane in enumerate(program.lanes):
        if lane != own and lane.stream is own.stream:
            yield _moved, row, index


def _crossings(program: Program, row: int) -> Iterator[Change]:
    lane = int(program.lane_of[row])
    if program.lanes[lane].stream is Stream.WIRE and row + 1 < program.bounds[lane + 1]:
        yield _swapped, row, row + 1


def _swapped(program: Program, row: int, other: int) -> Program:
    """Two actions change places; pairs stay where they are."""
    order = np.arange(len(program))
    order[[row, other]] = other, row
    return _rebuilt(
        program, program.actions.take(order).replace(joined=program.actions.joined), program.lane_of
    )


def _dropped(program: Program, row: int) -> Program:
    kept = np.delete(np.arange(len(program)), row)
    return _rebuilt(program, _unpaired(program, row).take(kept), program.lane_of[kept])


def _duplicated(program: Program, row: int) -> Program:
    is_paired = row + 1 < len(program) and bool(program.actions.joined[row + 1])
    order = np.insert(np.arange(len(program)), row + 1 + is_paired, row)
    actions = program.actions.take(order)
    joined = actions.joined.copy()
    joined[row + 1 + is_paired] = 0
    return _rebuilt(program, actions.replace(joined=joined), program.lane_of[order])


def _retargeted(program: Program, row: int, column: str, value: int) -> Program:
    changed = getattr(program.actions, column).copy()
    changed[row] = value
    return _rebuilt(program, program.actions.replace(**{column: changed}), program.lane_of)


def _moved(program: Program, row: int, lane: int) -> Program:
    """To the end of another lane."""
    lanes = program.lane_of.copy()
    lanes[row] = lane
    order = np.lexsort((np.arange(len(program)) == row, lanes))
    return _rebuilt(program, _unpaired(program, row).take(order), lanes[order])


def _unpaired(program: Program, row: int) -> Actions:
    """The actions with the pair of one of them dissolved."""
    joined = program.actions.joined.copy()
    joined[row : row + 2] = 0
    return program.actions.replace(joined=joined)


def _rebuilt(program: Program, actions: Actions, lane_of: Index) -> Program:
    lanes: dict[Lane, Actions] = {
        lane: actions.take(np.flatnonzero(lane_of == index))
        for index, lane in enumerate(program.lanes)
    }
    return program.with_lanes(lanes)
