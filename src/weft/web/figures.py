"""Figures: the numbers by which timelines are compared, each with what it means."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.draw.units import is_physical
from weft.ir.kinds import Kind
from weft.timeline import Timeline


class Figure(NamedTuple):
    """A number; `unit` is time, memory, share or count."""

    name: str
    value: float
    unit: str
    means: str


def figures(timeline: Timeline) -> list[dict[str, object]]:
    """All figures of a timeline, as JSON takes them."""
    return [figure._asdict() for figure in _figures(timeline)]


def _figures(timeline: Timeline) -> list[Figure]:
    wall, span = timeline.bubble
    size = "most that a device holds"
    in_shares = "" if is_physical(timeline) else "; weights of a device count 1"
    return [
        Figure("step", timeline.makespan, "time", "from the first start to the last end"),
        Figure("bubble, wall", wall, "share", "idle share of all devices within the step"),
        Figure("bubble, span", span, "share", "of the busiest device, within the longest span"),
        Figure("in flight", _most(timeline.peak_activations), "count",
               "most microbatches between F and B on a device, in device shares"),
        Figure("memory", _most(timeline.memory.peaks), "memory", size + in_shares),
        Figure("exposed wire", sum(timeline.exposed_communication), "time",
               "time that devices wait for messages on their way, all together"),
        Figure("messages", timeline.program.messages, "count", "values from device to device"),
        Figure("sent", _sent(timeline), "memory", "size of all messages together"),
    ]  # fmt: skip


def _most(values: list[float]) -> float:
    return max(values, default=0.0)


def _sent(timeline: Timeline) -> float:
    """Of sends where the program lists them, else of all values that cross."""
    program, actions = timeline.program, timeline.program.actions
    sends = np.flatnonzero(np.isin(actions.kind, (Kind.SEND_ACTIVATION, Kind.SEND_GRADIENT)))
    crossing = program.dependencies.edge[program.crossing]
    edges = actions.edge[sends].astype(np.int64) if len(sends) else crossing
    sizes = np.array([*timeline.cost.network.sizes(len(program.graph.edges)), 0.0])
    return float(sizes[edges].sum())
