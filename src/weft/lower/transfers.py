"""One wire for each device: all of its transfers, in one order that all devices share.

    device 1   compute        F0 B0 F1 B1
               wire 0 -> 1    R0    R1                 a lane for each end of each channel
               wire 1 -> 0          S0    S1

               wire           R0    S0 R1 S1           one lane; a send may wait for its receive

One list has the transfers of all devices. Each comes after what it carries is computed, and after
every transfer that this needed. Each wire has its device's part of the list, in the list's order.
So no circle of waits exists, even if a send waits until its receive is reached: the first transfer
of the list that is not done is the next on both of its wires, and nothing else keeps its value
from being computed. A cost decides which of the many such lists it is: by when values are there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.cost import Cost, Share
from weft.errors import InputError
from weft.ir.actions import Index
from weft.ir.earliest import Seconds, earliest
from weft.ir.kinds import Stream
from weft.ir.lanes import Lane
from weft.ir.program import Program
from weft.ir.values import Value
from weft.lower.folding import folded, steady_keys
from weft.lower.order import arcs, extension
from weft.lower.periods import released, without_epilogue
from weft.lower.wires import wires
from weft.timeline import Timeline

Choice: TypeAlias = Callable[[int, int], bool]  # of a source and a destination

_SPARE = 9  # bodies of an endless run beyond those of the program's steps


def one_wire(
    program: Program, cost: Cost | None = None, *, is_ordered: Choice | None = None
) -> Program:
    """The same program with one wire for each device, safe whatever the cost is.

    cost        orders transfers by when their values are there; else by shares of the work
    is_ordered  whether transfers from a device to another go by the wire; others keep a channel

    Sends that go by channels wait for nobody. A program that repeats does so again, after a
    prologue that may be longer by some bodies.
    """
    if not any(lane.stream is Stream.WIRE for lane in program.lanes):
        program = wires(program)
    if any(lane.is_one_wire for lane in program.lanes):
        raise InputError(f"{program.name} has one wire for each device already")
    cost, is_moved = cost or Share().cost(program), _is_moved(program, is_ordered)
    if program.period is not None:
        return _repeating(program, cost, is_moved)
    place = _places(_value_times(program, cost))
    return _rewired(program, _order(program, place, _NONE), is_moved)


def _is_moved(program: Program, is_ordered: Choice | None) -> NDArray[np.bool_]:
    """For each lane, whether it becomes part of its device's one wire."""
    channels = [lane.channel for lane in program.lanes]
    if is_ordered is None:
        return np.array([channel is not None for channel in channels], np.bool_)
    return np.array([c is not None and is_ordered(c.source, c.destination) for c in channels])


def _rewired(program: Program, order: Index, is_moved: NDArray[np.bool_]) -> Program:
    """Lanes that stay, then the wires with the transfers of the others, in this order."""
    moved = order[is_moved[program.lane_of[order]]]
    lanes = {lane: program.lane(i) for i, lane in enumerate(program.lanes) if not is_moved[i]}
    for device in np.unique(program.device_of[moved]).tolist():
        mine = moved[program.device_of[moved] == device]
        lanes[Lane(device, Stream.WIRE)] = program.actions.take(mine)
    return program.with_lanes(lanes)


def launched_together(timeline: Timeline) -> Index:
    """All rows by start, as far as lanes and values allow, a receive right after its send.

    Where all devices launch by that order, nothing that was launched before a place of it needs
    what comes after: also where a device has to end what it has before it goes on.
    """
    return _order(timeline.program, _places(timeline.start), _NONE)


def transfer_steps(program: Program) -> Index:
    """For each action of one wire, the step whose data have to be given before it takes place.

    At both ends of a transfer it is the same, and along a wire it only grows: a run that is fed
    step by step does with each what is there up to the next. A turn of the body later it is as
    much more as the body has steps. -1 for other actions; 0 where nothing repeats.
    """
    lanes = [index for index, lane in enumerate(program.lanes) if lane.is_one_wire]
    found = np.where(np.isin(program.lane_of, lanes), 0, -1)
    if program.period is None:
        return found
    endless = without_epilogue(program, program.steps + _SPARE)
    since = released(endless)
    for index in lanes:
        first, start = int(program.bounds[index]), int(endless.bounds[index])
        listed = program.period.prologue[index] + program.period.body[index]
        found[first : first + listed] = since[start : start + listed]
        found[first + listed : program.bounds[index + 1]] = program.steps - 1
    return found


# the list


def _value_times(program: Program, cost: Cost) -> Seconds:
    """For each action when it ends, for a transfer when its value is computed.

    As if channels carried messages beside each other.
    """
    durations, gaps = cost.durations(program), cost.gaps(program)
    precedence = program.precedence(cost.delays(program)).with_gaps(gaps)
    ends = earliest(precedence, durations + gaps) + durations
    return np.asarray(ends[program.slot_of[program.origin]])


def _places(keys: NDArray[np.float64] | Index) -> Index:
    """The place of each row by its key; of equal ones, by row."""
    place = np.empty(len(keys), np.int64)
    place[np.argsort(keys, kind="stable")] = np.arange(len(keys))
    return place


class _Steps(NamedTuple):
    """Nodes between actions, one for each step, and what comes before and after them."""

    nodes: int
    before: Index
    after: Index


_NONE = _Steps(0, np.empty(0, np.int64), np.empty(0, np.int64))


def _order(program: Program, place: Index, steps: _Steps) -> Index:
    """All rows by place, as far as lanes and values allow, a receive right after its send."""
    (before, after), (send, receive) = arcs(program), _transfers(program)
    slots = program.first_of_slot[program.slot_of]  # actions of a pair end together
    node = np.append(slots, len(program) + np.arange(steps.nodes))
    before = node[np.concatenate([before, steps.before])]
    after = node[np.concatenate([after, steps.after])]
    is_apart = before != after
    place = np.concatenate([place, np.full(steps.nodes, -1)])
    found = extension(program, place, before[is_apart], after[is_apart])
    moment = np.empty(len(node), np.int64)
    moment[found] = 2 * np.arange(len(found))
    moment[receive] = moment[send] + 1
    return np.argsort(moment[: len(program)], kind="stable")


def _transfers(program: Program) -> tuple[Index, Index]:
    """Sends, and the receive of each."""
    rows = np.flatnonzero(program.dependencies.value == Value.MESSAGE)
    return program.dependencies.producer[rows], program.dependencies.consumer[rows]


# what repeats


def _repeating(program: Program, cost: Cost, is_moved: NDArray[np.bool_]) -> Program:
    """Order an endless run, and fold it where it repeats."""
    bodies = 3 * (program.steps + _SPARE)
    endless = without_epilogue(program, bodies)
    keys = steady_keys(program, _value_times(endless, cost), bodies)
    order = _order(endless, _places(keys), _steps(endless))
    return folded(program, _rewired(endless, order, is_moved))


def _steps(endless: Program) -> _Steps:
    """Between what the call of a step needs and what has to wait for the next step's data.

    Otherwise a transfer that the call needs could come after one that it cannot do: it would not
    end.
    """
    since, (send, receive) = released(endless), _transfers(endless)
    nodes = int(since.max(initial=0)) + 2
    possible = since[endless.origin[send]]
    needed = np.full(len(endless), nodes - 2)
    np.minimum.at(needed, endless.dependencies.producer, since[endless.dependencies.consumer])
    first = len(endless) + np.arange(nodes)
    return _Steps(
        nodes,
        before=np.concatenate([send, first[possible], first[:-1]]),
        after=np.concatenate([first[needed[receive] + 1], send, first[1:]]),
    )
