"""Gains: what shortening one action would bring, exactly, without timing the program again.

If v takes d less, the program ends min(d, makespan - longest path around v) sooner. At a moment
in the middle of v, every path that avoids v is inside another action, on its way from one to the
next, not begun or already over:

    v          [======|======]
    another        [==|====]            its longest path: head + own + tail
    on its way  u]----|----->[w         head of u + delay + tail of w

So the longest path around v is the largest of the stretches that cover its middle.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.cost import Cost
from weft.ir.actions import Index
from weft.ir.earliest import Precedence, Seconds
from weft.ir.program import Program

SHARE = 0.1  # of an action's duration


class _Stretches(NamedTuple):
    """Paths that cover these stretches of time, and how long each path is in all."""

    start: Seconds
    end: Seconds
    length: Seconds


class _Machine(NamedTuple):
    """What waits for what: slots for values, and for the host after the slot before."""

    precedence: Precedence
    gaps: Seconds


class Paths(NamedTuple):
    """For each slot, the longest paths to its start, through it, and from its end on."""

    head: Seconds
    duration: Seconds
    tail: Seconds


def gains(program: Program, cost: Cost, paths: Paths) -> Seconds:
    """For each action, how much sooner all would end if it took a tenth less."""
    if not len(program):
        return np.empty(0)
    machine = _Machine(program.precedence(cost.delays(program)), cost.gaps(program))
    begin, duration, tail = paths.head, paths.duration, paths.tail + paths.duration
    makespan = float((begin + tail).max())
    noise = 1e-12 * makespan
    critical = np.flatnonzero((begin + tail >= makespan - noise) & (duration > 0))
    around = _longest_around(machine, begin, duration, tail, critical)
    gained = np.zeros(len(duration))
    spare = makespan - around
    gained[critical] = np.where(spare > noise, np.minimum(SHARE * duration[critical], spare), 0.0)
    return gained[program.slot_of]


def _longest_around(
    machine: _Machine, begin: Seconds, duration: Seconds, tail: Seconds, slots: Index
) -> Seconds:
    """For each of some slots, the longest path that avoids it."""
    middle = (begin + duration / 2)[slots]
    order = np.argsort(middle, kind="stable")
    moments, head = middle[order], begin + duration
    never = np.full(len(begin), np.inf)
    found = np.zeros(len(slots))
    own = np.full(len(begin), -1)
    own[slots[order]] = np.arange(len(slots))
    for stretches in (
        _Stretches(-never, begin, tail),
        _Stretches(head, never, head),
        _ways(machine, begin, head, tail),
    ):
        first = np.searchsorted(moments, stretches.start)
        last = np.searchsorted(moments, stretches.end, "right")
        _raise(found, first, last, stretches.length)
    first, last = np.searchsorted(moments, begin), np.searchsorted(moments, head, "right")
    is_own = own >= 0
    _raise(found, first, np.where(is_own, own, last), begin + tail)
    _raise(found, np.where(is_own, own + 1, last), last, begin + tail)
    around = np.empty(len(slots))
    around[order] = found
    return around


def _ways(machine: _Machine, begin: Seconds, head: Seconds, tail: Seconds) -> _Stretches:
    """From every producer to its consumer, and from every slot to the next of its lane."""
    precedence = machine.precedence
    is_last = np.zeros(len(begin) + 1, np.bool_)
    is_last[precedence.bounds[1:] - 1] = True
    mates = np.flatnonzero(~is_last[:-1])
    producer = np.concatenate([precedence.producer, mates])
    consumer = np.concatenate([precedence.consumer, mates + 1])
    delay = np.concatenate([precedence.delay, machine.gaps[mates]])
    return _Stretches(head[producer], begin[consumer], head[producer] + delay + tail[consumer])


def _raise(found: Seconds, first: Index, last: Index, length: Seconds) -> None:
    """Raise found[first[i] : last[i]] to length[i] at least, for all i.

    A range is two overlapping blocks of a power of two; blocks are raised, then halved.
    """
    is_any = last > first
    first, last, length = first[is_any], last[is_any], length[is_any]
    levels = np.floor(np.log2(np.maximum(last - first, 1))).astype(np.int64)
    blocks = np.zeros((int(levels.max(initial=0)) + 1, len(found)))
    of_level = levels * len(found)
    np.maximum.at(blocks.ravel(), of_level + first, length)
    np.maximum.at(blocks.ravel(), of_level + last - (1 << levels), length)
    for level in range(len(blocks) - 1, 0, -1):
        half = 1 << (level - 1)
        below = blocks[level - 1]
        np.maximum(below, blocks[level], out=below)
        np.maximum(below[half:], blocks[level][:-half], out=below[half:])
    np.maximum(found, blocks[0], out=found)
