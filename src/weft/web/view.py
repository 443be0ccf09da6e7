"""Views: all that a page shows of a timeline, as JSON takes it.

columns   one entry for each action, in the order of the program
idle      one entry for each stretch in which a device computes nothing
memory    for each device, when it changes and what each category holds from then on
reads     who reads whose value
"""

from __future__ import annotations

import numpy as np

from weft.draw.bands import ROWS, shown_ends
from weft.draw.caption import title
from weft.draw.units import Unit, memory_unit, time_unit
from weft.explain import is_fitting
from weft.ir.actions import Index
from weft.ir.lanes import Lane
from weft.ir.program import Program
from weft.ir.values import Value
from weft.ir.versions import staleness
from weft.request import Speed
from weft.simulate import Step
from weft.timeline import CAUSES, Category, Timeline
from weft.web.columns import Packed, exact, rounded
from weft.web.figures import figures
from weft.web.shortage import shortage

FIELDS = ("stage", "kind", "microbatch", "span", "version", "pipe", "edge", "segment", "joined")
STRETCH_FIELDS = ("device", "cause", "start", "end", "before", "waits_for")


def view(
    timeline: Timeline, name: str = "", step: Step | None = None, speed: Speed | None = None
) -> dict[str, object]:
    """Everything that is known of a timeline, under its own name or another.

    `step` says by what it is compared; else by what its program calls a step.
    """
    program, step = timeline.program, step or Step.of(timeline)
    return {
        "name": name or program.name,
        "title": title(program.renamed(name) if name else program),
        "digest": program.digest,
        "is_measured": timeline.is_measured,
        "has_versions": bool((program.actions.version > 0).any()),
        "devices": program.devices,
        "edges": [list(edge) for edge in program.graph.edges],
        "lanes": [_lane(lane) for lane in program.lanes],
        "bounds": program.bounds.tolist(),
        "opening": float(timeline.start.min(initial=np.inf)) if len(program) else 0.0,
        "makespan": timeline.makespan,
        "units": {"time": _unit(time_unit(timeline)), "memory": _unit(memory_unit(timeline))},
        "steps": program.steps,
        "step": step.microbatches,
        "group": _group(timeline),
        "shortage": shortage(timeline),
        "figures": figures(timeline, step, speed),
        "columns": _columns(timeline),
        "reads": _reads(program),
        "idle": _idle(timeline),
        "critical": exact(np.array(timeline.critical_path.actions, np.int32)),
        "memory": _memory(timeline),
    }


def _group(timeline: Timeline) -> str:
    """What sets timelines apart before any figure does."""
    if is_fitting(timeline) is False:
        return "does not fit"
    return "stale weights" if max(staleness(timeline.program)) else "exact gradients"


def _unit(unit: Unit) -> dict[str, object]:
    return unit._asdict()


def _lane(lane: Lane) -> dict[str, object]:
    """A lane and the row of its device that shows it."""
    row = next(name for name, streams in ROWS.items() if lane.stream in streams)
    channel = lane.channel
    ends = {"source": channel.source, "destination": channel.destination} if channel else {}
    return {"device": lane.device, "stream": lane.stream.value, "row": row, **ends}


def _columns(timeline: Timeline) -> dict[str, Packed]:
    program = timeline.program
    columns = {name: exact(getattr(program.actions, name)) for name in FIELDS}
    return columns | {
        "start": exact(timeline.start),
        "end": exact(shown_ends(timeline)),
        "place": exact(_places(program)),
        "decider": exact(timeline.deciders),
        "slack": rounded(timeline.critical_path.slack),
        "gain": rounded(_gains(timeline)),
    }


def _gains(timeline: Timeline) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """What was measured stays as it was."""
    return np.zeros(len(timeline.program)) if timeline.is_measured else timeline.gains


def _places(program: Program) -> Index:
    """For each action, which of its device's stages it belongs to."""
    table = np.zeros((len(program.placement.pipes), program.stages), np.int64)
    for stages in program.placement.held:
        for place, (pipe, stage) in enumerate(stages):
            table[pipe, stage] = place
    return table[program.actions.pipe, program.actions.stage]


def _reads(program: Program) -> dict[str, object]:
    dependencies = program.dependencies
    return {
        "consumer": exact(dependencies.consumer),
        "producer": exact(dependencies.producer),
        "value": exact(dependencies.value.astype(np.int32)),
        "values": [value.name.lower().replace("_", " ") for value in Value],
    }


def _idle(timeline: Timeline) -> dict[str, object]:
    stretches = timeline.stretches
    return {
        "causes": [cause.value for cause in CAUSES],
        **{name: exact(getattr(stretches, name)) for name in STRETCH_FIELDS},
        "sums": _sums(timeline),
    }


def _sums(timeline: Timeline) -> list[dict[str, float]]:
    """For each device its work, and idle seconds by cause."""
    sums = timeline.stretches.sums(timeline.program.devices).tolist()
    return [
        {"work": work}
        | {cause.value: idle for cause, idle in zip(CAUSES, waits, strict=True) if idle}
        for work, waits in zip(timeline.device_work.tolist(), sums, strict=True)
    ]


def _memory(timeline: Timeline) -> dict[str, object]:
    """Curves of a device share their times, so that they stack."""
    usage, capacity = timeline.memory, timeline.cost.memory.capacity
    used = [category for category in Category if any(category in c for c in usage.curves)]
    devices = []
    for device, curves in enumerate(usage.curves):
        times = usage.total(device).times
        levels = {
            category.value: rounded(curve.sampled(times)) for category, curve in curves.items()
        }
        opening = float(timeline.start.min()) if len(timeline.start) else 0.0
        devices.append({"times": exact(np.maximum(times, opening)), "levels": levels})
    return {
        "categories": [category.value for category in used],
        "devices": devices,
        "peaks": usage.peaks,
        "capacity": capacity if np.isfinite(capacity) else None,
    }
