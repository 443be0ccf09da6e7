"""Captions: what a picture says in words."""

from __future__ import annotations

from weft.draw.units import is_physical, memory_unit, time_unit
from weft.ir.program import Program
from weft.timeline import Timeline


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
    if program.steps > 1:
        amounts.append((program.steps, "step", "steps"))
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
