"""Captions: what a picture says in words."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.draw.marks import Mark
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.timeline import Timeline

WORDS = {
    Kind.F: "forward",
    Kind.B: "backward",
    Kind.I: "input gradient",
    Kind.W: "weight gradient",
    Kind.R: "recompute",
    Kind.UPDATE: "update",
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
    """Time, both bubbles and peak, a phrase each."""
    wall, span = timeline.bubble
    return [
        f"time {number(timeline.makespan)}",
        f"bubble wall {percent(wall)}",
        f"bubble span {percent(span)}",
        f"peak {number(max(timeline.peak_activations))} in flight",
    ]


def legend(timeline: Timeline) -> Iterator[tuple[list[Mark], str]]:
    """For each kind that takes time: a mark for each of a device's stages, and its meaning."""
    program = timeline.program
    places = range(max(len(held) for held in program.placement.held))
    takes_time = timeline.end > timeline.start
    for kind in map(Kind, np.unique(program.actions.kind[takes_time]).tolist()):
        if kind in WORDS:
            yield [Mark(kind, place=place) for place in places], WORDS[kind]
