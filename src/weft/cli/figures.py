"""Figures of a proved timeline: all of them for JSON, a report for people."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from rich.console import RenderableType

from weft.cli.output import facts, table
from weft.cost import Provenance
from weft.cost.units import SECONDS, fitting
from weft.draw.caption import number, percent, title
from weft.draw.units import is_physical, memory_unit, time_unit
from weft.ir.kinds import Kind
from weft.ir.versions import resident_versions, staleness
from weft.jitter import Jittered
from weft.notation import token
from weft.request import Speed
from weft.simulate import Steady
from weft.timeline import Category, Cause, Timeline
from weft.verify import Report

ENDS = 4  # actions of the critical path that are shown at either end

Fact: TypeAlias = tuple[str, str, str]

_AFTER = {Kind.REDUCE: "the reduction", Kind.UPDATE: "the update"}


def figures(
    timeline: Timeline,
    proof: Report,
    steady: Steady | None = None,
    speed: Speed | None = None,
    jitter: Jittered | None = None,
) -> dict[str, object]:
    """Everything, as JSON takes it."""
    program = timeline.program
    settled = {"steady": steady._asdict()} if steady else {}
    return {
        "name": program.name,
        "devices": program.devices,
        "microbatches": program.microbatches,
        "stages": program.stages,
        "makespan": timeline.makespan,
        "longest_device_span": float(timeline.device_spans.max()),
        "bubble": timeline.bubble._asdict(),
        "peak_activations": timeline.peak_activations,
        "weight_copies": program.placement.weight_copies,
        "messages": program.messages,
        "versions": resident_versions(program),
        "staleness": staleness(program),
        "actions": len(program),
        "verified": proof.is_valid,
        "channel_depth": proof.channel_depth,
        "memory": _memory(timeline),
        "provenance": {mark.value: fraction for mark, fraction in timeline.provenance.items()},
        **({"speed": speed._asdict()} if speed else {}),
        **({"jitter": jitter._asdict()} if jitter else {}),
        **settled,
    }


def _memory(timeline: Timeline) -> dict[str, object]:
    """The most that each device holds, of all and of each category, and what it has."""
    usage, capacity = timeline.memory, timeline.cost.memory.capacity
    used = [category for category in Category if any(category in c for c in usage.curves)]
    return {
        "peak": usage.peaks,
        "categories": {
            category.value: [
                curves[category].peak if category in curves else 0.0 for curves in usage.curves
            ]
            for category in used
        },
        **({"capacity": capacity} if np.isfinite(capacity) else {}),
    }


def report(
    timeline: Timeline,
    proof: Report,
    steady: Steady | None = None,
    speed: Speed | None = None,
    jitter: Jittered | None = None,
) -> Iterator[RenderableType]:
    """What people want to know first, and the devices below it."""
    program = timeline.program
    yield title(program)
    yield ""
    known = _known(timeline, speed) if is_physical(timeline) else ()
    settled = [*_settled(timeline, steady), *_jittered(timeline, steady, jitter)]
    yield facts([*_summary(timeline, proof), *known, *settled])
    yield ""
    if is_physical(timeline):
        yield f"in {time_unit(timeline).name} and {memory_unit(timeline).name}:"
    yield table(*_devices(timeline))
    yield ""
    yield _critical(timeline)


def _summary(timeline: Timeline, proof: Report) -> Iterator[Fact]:
    program, unit = timeline.program, time_unit(timeline)
    wall, span = timeline.bubble
    yield "time", unit.amount(timeline.makespan), "from the first start to the last end"
    yield "bubble, wall", percent(wall), "idle fraction of all devices within that time"
    yield (
        "bubble, span",
        percent(span),
        "the busiest device, within the longest span of one,"
        f" {unit.amount(float(timeline.device_spans.max()))}",
    )
    yield (
        "weight copies",
        number(program.placement.weight_copies),
        "on a device, in shares of the model",
    )
    yield "messages", str(program.messages), "values that go from device to device"
    yield (
        "actions",
        str(len(program)),
        f"verified; blocking sends need channels of depth {proof.channel_depth}",
    )


def _known(timeline: Timeline, speed: Speed | None) -> Iterator[Fact]:
    """What can be said of seconds and bytes: how they are known, how fast and how full it is."""
    fractions = timeline.provenance
    known = ", ".join(f"{percent(fraction)} {mark.value}" for mark, fraction in fractions.items())
    if set(fractions) == {Provenance.DERIVED}:
        yield "seconds", "bound", f"{known}: the best that the device can do"
    else:
        yield "seconds", "estimate", known
    yield from _left_out(timeline)
    if speed:
        yield "tokens/s", f"{speed.tokens_per_second:,.0f}", f"on {speed.devices:,} devices"
        yield "MFU", percent(speed.mfu), "FLOPs of the model, of what all devices can do"
    unit, capacity = memory_unit(timeline), timeline.cost.memory.capacity
    limit = f", of {unit.amount(capacity)}" if np.isfinite(capacity) else ""
    yield "memory", unit.amount(max(timeline.memory.peaks)), f"the most that a device holds{limit}"


def _left_out(timeline: Timeline) -> Iterator[Fact]:
    """What follows the last backward, where the program does not list it."""
    program, times = timeline.program, timeline.cost.times
    for kind, per_stage in ((Kind.REDUCE, times.reduce), (Kind.UPDATE, times.update)):
        of_devices = [sum(per_stage[s] for _, s in held) for held in program.placement.held]
        seconds = max(of_devices)
        if seconds and not (program.actions.kind == kind).any():
            amount = fitting(seconds, SECONDS).amount(seconds)
            yield "left out", amount, f"{_AFTER[kind]} of the slowest device, not in the program"


def _settled(timeline: Timeline, steady: Steady | None) -> Iterator[Fact]:
    """What counts where steps do not end together."""
    if steady is None:
        return
    program, unit = timeline.program, time_unit(timeline)
    yield "steady period", unit.amount(steady.period), "per update, once settled"
    yield "steady bubble", percent(steady.bubble), "idle fraction of all devices, once settled"
    versions = " ".join(map(str, resident_versions(program)))
    yield "versions", versions, "most weight versions kept, for each stage"
    yield (
        "staleness",
        " ".join(map(str, staleness(program))),
        "most updates missing in its weights, for each stage",
    )


def _jittered(timeline: Timeline, steady: Steady | None, jitter: Jittered | None) -> Iterator[Fact]:
    """How long a step takes where durations vary; of what settles, an update."""
    if jitter is None:
        return
    unit = time_unit(timeline)
    still, what = (timeline.makespan, "steps") if steady is None else (steady.period, "periods")
    mean, low, high = (unit.amount(drawn(still * ratio)) for ratio in jitter[:3])
    longer = f"{percent(jitter.mean - 1)} longer, as durations vary"
    yield "with jitter", mean, f"{longer}; of {jitter.draws} {what} 95% take {low} to {high}"


def drawn(value: float) -> float:
    """What is left of the mean of some draws if it says no more than it knows."""
    return float(f"{value:.4g}")


def _devices(timeline: Timeline) -> tuple[list[str], list[list[str]]]:
    """A row for each device; a cause that never occurs has no column, but for the wire."""
    waits: defaultdict[tuple[Cause, int], float] = defaultdict(float)
    for stretch in timeline.idle:
        waits[stretch.cause, stretch.device] += stretch.seconds
    present = {cause for cause, _ in waits} | {Cause.WIRE}
    causes = [cause for cause in Cause if cause in present]
    seconds, size = time_unit(timeline).number, memory_unit(timeline).number
    columns = ["device", "work", "idle", *map(_heading, causes), "peak", "memory"]
    rows = []
    for device, (work, peak, memory) in enumerate(
        zip(timeline.device_work, timeline.peak_activations, timeline.memory.peaks, strict=True)
    ):
        idle = [waits[cause, device] for cause in causes]
        times = map(seconds, [work, sum(idle), *idle])
        rows.append([str(device), *times, number(peak), size(memory)])
    return columns, rows


def _heading(cause: Cause) -> str:
    """A wait for the wire is communication that nothing hides; `memory` is another column."""
    return {Cause.WIRE: "exposed", Cause.MEMORY: "no room"}.get(cause, cause.value)


def _critical(timeline: Timeline) -> str:
    """How long the path is, what it is made of, and both its ends."""
    program, path = timeline.program, timeline.critical_path.actions
    kinds = Counter(Kind(int(program.actions.kind[action])).name for action in path)
    made_of = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    words = [f"{token(program, a)} on {program.device_of[a]}" for a in path]
    if len(words) > 2 * ENDS + 1:
        words = [*words[:ENDS], f"... {len(words) - 2 * ENDS} more ...", *words[-ENDS:]]
    return f"critical path: {len(path)} actions ({made_of})\n  {' > '.join(words)}"
