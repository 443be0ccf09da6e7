"""Captions: what a picture says in words."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.draw.bands import shown_ends
from weft.draw.marks import Mark
from weft.draw.units import is_physical, memory_unit, time_unit
from weft.ir.kinds import Kind, Part
from weft.ir.program import Program
from weft.timeline import Timeline

WORDS = {
    Kind.F: "forward",
    Kind.B: "backward",
    Kind.I: "input gradient",
    Kind.W: "weight gradient",
    Kind.R: "recompute",
    Kind.UPDATE: "update",
    Kind.SEND_ACTIVATION: "send to another device",
    Kind.OFFLOAD: "offload",
    Kind.ONLOAD: "load back",
}
PART_WORDS = {
    Part.ATTENTION: "attention",
    Part.DISPATCH: "dispatch to experts",
    Part.EXPERTS: "experts",
    Part.COMBINE: "combine",
}


def number(value: float) -> str:
    """A number for people: up to six digits, without the zeros that say nothing."""
    return f"{value:.6g}"


def percent(share: float) -> str:
    """A share of 1 for people, never a negative zero."""
    return f"{100 * max(share, 0.0):.1f}%"


def title(program: Program) -> str:
    """Name and shape of a program."""
    amounts = [
        (program.devices, "device", "devices"),
        (program.microbatches, "microbatch", "microbatches"),
    ]
    if program.stages != program.devices:
        amounts.append((program.stages, "stage", "stages"))
    if len(program.placement.pipes) > 1:
        amounts.append((len(program.placement.pipes), "pipe", "pipes"))
    words = [f"{amount} {one if amount == 1 else more}" for amount, one, more in amounts]
    return f"{program.name}: {', '.join(words)}"


def figures(timeline: Timeline) -> list[str]:
    """Time, both bubbles, peak and, in bytes, memory, a phrase each."""
    wall, span = timeline.bubble
    phrases = [
        f"time {time_unit(timeline).amount(timeline.makespan)}",
        f"bubble wall {percent(wall)}",
        f"bubble span {percent(span)}",
        f"peak {number(max(timeline.peak_activations))} in flight",
    ]
    if is_physical(timeline):
        phrases.append(f"memory {memory_unit(timeline).amount(max(timeline.memory.peaks))}")
    return phrases


def legend(timeline: Timeline) -> Iterator[tuple[list[Mark], str]]:
    """For each kind that takes time: a mark for each of a device's stages, and its meaning."""
    program = timeline.program
    places = range(max(len(held) for held in program.placement.held))
    takes_time = shown_ends(timeline) > timeline.start
    is_whole = takes_time & (program.actions.segment < 0)
    for kind in map(Kind, np.unique(program.actions.kind[is_whole]).tolist()):
        if kind in WORDS:
            stages = places if kind.is_compute else range(1)
            yield [Mark(kind, place=place) for place in stages], WORDS[kind]
    is_part = takes_time & (program.actions.segment >= 0)
    for part in map(Part, np.unique(program.actions.segment[is_part] % len(Part)).tolist()):
        yield [Mark(kind, part=part) for kind in (Kind.F, Kind.B)], PART_WORDS[part]
