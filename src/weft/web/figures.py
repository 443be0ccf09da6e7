"""Figures: the numbers by which timelines are compared, each with what it means."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.draw.units import is_physical
from weft.ir.kinds import Kind
from weft.ir.versions import staleness
from weft.request import Speed
from weft.simulate import Steady, Step
from weft.timeline import Timeline


class Figure(NamedTuple):
    """A number; `unit` is time, memory, share or count.

    is_compared  whether less of it is better than more, at any shape
    """

    name: str
    value: float
    unit: str
    means: str
    is_compared: bool = True


def figures(timeline: Timeline, step: Step, speed: Speed | None = None) -> list[dict[str, object]]:
    """All figures of a timeline, as JSON takes them; what adds up, for one step."""
    found = [*_figures(timeline, step), *(_speeds(speed) if speed else ())]
    return [figure._asdict() for figure in found]


def _speeds(speed: Speed) -> list[Figure]:
    """Of a model on all its devices; more of it is better."""
    return [
        Figure("MFU", speed.mfu, "share", "FLOP/s of the model relative to the devices' peak",
               is_compared=False),
        Figure("tokens per second", round(speed.tokens_per_second), "count",
               "of all copies together", is_compared=False),
        Figure("devices in all", speed.devices, "count",
               "of the pipeline, times those that share a stage, times copies", is_compared=False),
    ]  # fmt: skip


def _figures(timeline: Timeline, step: Step) -> list[Figure]:
    bubble, share = step.bubble(timeline), step.share(timeline)
    size = "most that a device holds"
    in_shares = "" if is_physical(timeline) else "; weights of a device count 1"
    return [
        *_times(timeline, step),
        Figure("bubble, wall", bubble.wall, "share", "idle fraction of all devices"),
        Figure("bubble, span", bubble.span, "share",
               "of the busiest device, within the longest span"),
        Figure("in flight", _most(timeline.peak_activations), "count",
               "most microbatches between F and B on a device, in device shares"),
        Figure("memory", _most(timeline.memory.peaks), "memory", size + in_shares),
        Figure("exposed wire", sum(timeline.exposed_communication) * share, "time",
               "time that devices wait for messages on their way, all together"),
        Figure("messages", timeline.program.messages * share, "count",
               "values from device to device"),
        *_sent(timeline, share),
        Figure("stale", max(staleness(timeline.program)), "count",
               "most updates missing in the weights that are used; 0: gradients are exact"),
    ]  # fmt: skip


def step_of(timeline: Timeline, microbatches: int, settled: Steady | None = None) -> Step:
    """By what a timeline is compared: a run by this many microbatches, a step by those it has."""
    is_run = settled is not None or timeline.program.steps > 1
    return Step(microbatches, settled) if is_run else Step.of(timeline)


def _times(timeline: Timeline, step: Step) -> list[Figure]:
    """Of a step, and of the whole run where that is longer."""
    seconds, steps = step.seconds(timeline), timeline.program.steps
    each = Figure("per microbatch", seconds / step.microbatches, "time", "the step, shared out")
    if step.settled is None and steps == 1:
        return [Figure("step", seconds, "time", "from the first start to the last end"), each]
    of = f"{step.microbatches} microbatch{'es' if step.microbatches > 1 else ''}"
    how = "once settled" if step.settled else f"on average of {steps} steps"
    drawn = f"all that is drawn, {steps} steps"
    run = Figure("run", timeline.makespan, "time", drawn, is_compared=False)
    return [Figure("step", seconds, "time", f"of {of}, {how}"), each, run]


def _most(values: list[float]) -> float:
    return max(values, default=0.0)


def _sent(timeline: Timeline, share: float) -> list[Figure]:
    """Of sends where the program lists them, else of all values that cross; not without sizes."""
    program, actions = timeline.program, timeline.program.actions
    sizes = np.array([*timeline.cost.network.sizes(len(program.graph.edges)), 0.0])
    if not sizes.any():
        return []
    sends = np.flatnonzero(np.isin(actions.kind, (Kind.SEND_ACTIVATION, Kind.SEND_GRADIENT)))
    crossing = program.dependencies.edge[program.crossing]
    edges = actions.edge[sends].astype(np.int64) if len(sends) else crossing
    size = float(sizes[edges].sum()) * share
    return [Figure("sent", size, "memory", "size of all messages together")]
