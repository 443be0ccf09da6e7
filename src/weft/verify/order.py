"""Order: nothing is read before it can exist, and no lanes wait for each other indefinitely."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from weft.ir.actions import Index
from weft.ir.kinds import EDGE_END
from weft.ir.program import Program
from weft.ir.values import Value
from weft.verify.context import Breach, Context
from weft.verify.cycles import cycles

OF_WEIGHTS = (Value.WEIGHTS, Value.WEIGHT_GRADIENT, Value.NORM)


def ordered(context: Context) -> Iterator[Breach]:
    """Within a lane, what an action reads is computed in front of it."""
    dependencies = context.program.dependencies
    rows = too_late(context.program)
    for row in rows[~np.isin(dependencies.value[rows], OF_WEIGHTS)].tolist():
        consumer, producer = int(dependencies.consumer[row]), int(dependencies.producer[row])
        yield late(context, consumer, producer)


def too_late(program: Program) -> Index:
    """Dependencies whose producer comes after its consumer in one lane, or in one pair."""
    consumer, producer = program.dependencies.consumer, program.dependencies.producer
    is_near = program.lane_of[consumer] == program.lane_of[producer]
    is_after = program.slot_of[producer] >= program.slot_of[consumer]
    return np.flatnonzero(is_near & is_after & ~program.is_fused)


def late(context: Context, consumer: int, producer: int) -> Breach:
    """The breach of reading too early, in words."""
    program = context.program
    device, reader, source = (
        int(program.device_of[consumer]),
        context.token(consumer),
        context.token(producer),
    )
    if program.slot_of[consumer] == program.slot_of[producer]:
        cause = f"device {device} pairs {reader} with {source}, whose result it reads"
    else:
        cause = f"device {device} runs {reader} before {source}, whose result it reads"
    return context.at(consumer, f"{cause}. Move {source} in front of {reader}.")


def free_of_deadlock(context: Context) -> Iterator[Breach]:
    """With sends that never block, every lane reaches its end.

    Where transfers wait for each other on one wire, that is for a rule of its own to judge.
    """
    if context.has_one_wire:
        context = context.without_wires()
    for ring in cycles(context.precedence, context.start):
        waits = list(_waits(context, ring))
        story = ", ".join(_words(context, wait) for wait in waits)
        at, remedy = _remedy(context, waits)
        yield context.at(at, f"deadlock: {story}. {remedy}")


class Wait(NamedTuple):
    """An action that waits for another, by rows."""

    consumer: int
    producer: int


def _waits(context: Context, ring: list[int]) -> Iterator[Wait]:
    """The waits of a ring, each for the computation at the end of the wires that it waits for."""
    dependencies, kinds = context.program.dependencies, context.program.actions.kind
    rows = np.flatnonzero(~context.program.is_fused)[ring]
    consumers, producers = dependencies.consumer[rows], dependencies.producer[rows]
    is_wire = np.isin(kinds[consumers], list(EDGE_END))
    starts = np.flatnonzero(~is_wire)
    for start, following in zip(starts, np.roll(starts, -1), strict=True):
        yield Wait(int(consumers[start]), int(producers[following - 1]))


def _words(context: Context, wait: Wait) -> str:
    devices = context.program.device_of
    return (
        f"device {devices[wait.consumer]} waits at {context.token(wait.consumer)} for"
        f" {context.token(wait.producer)} of device {devices[wait.producer]}"
    )


def _remedy(context: Context, waits: list[Wait]) -> tuple[int, str]:
    """Where to cut the ring: where what others wait for is the earlier kind of work."""
    kinds = context.program.actions.kind
    pairs = [
        (wait.consumer, before.producer)
        for wait, before in zip(waits, waits[-1:] + waits[:-1], strict=True)
    ]
    held_up, awaited = max(pairs, key=lambda pair: int(kinds[pair[0]]) - int(kinds[pair[1]]))
    return held_up, (
        f"On device {context.program.device_of[held_up]}, move {context.token(awaited)}"
        f" in front of {context.token(held_up)}."
    )
