"""Figures of a proved timeline: all of them for JSON, a report for people."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from rich.console import RenderableType

from weft.cli.output import facts, table
from weft.draw.caption import number, percent, title
from weft.ir.kinds import Kind
from weft.ir.versions import resident_versions, staleness
from weft.notation import token
from weft.simulate import Steady
from weft.timeline import Category, Cause, Timeline
from weft.verify import Report

ENDS = 4  # actions of the critical path that are told at either end


def figures(timeline: Timeline, proof: Report, steady: Steady | None = None) -> dict[str, object]:
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
        **settled,
    }


def _memory(timeline: Timeline) -> dict[str, object]:
    """The most that each device holds, of all and of each category."""
    usage = timeline.memory
    used = [category for category in Category if any(category in c for c in usage.curves)]
    return {
        "peak": usage.peaks,
        "categories": {
            category.value: [
                curves[category].peak if category in curves else 0.0 for curves in usage.curves
            ]
            for category in used
        },
    }


def report(
    timeline: Timeline, proof: Report, steady: Steady | None = None
) -> Iterator[RenderableType]:
    """What people want to know first, and the devices below it."""
    program = timeline.program
    yield title(program)
    yield ""
    yield facts([*_summary(timeline, proof), *_settled(timeline, steady)])
    yield ""
    yield table(*_devices(timeline))
    yield ""
    yield _critical(timeline)


def _summary(timeline: Timeline, proof: Report) -> Iterator[tuple[str, str, str]]:
    program = timeline.program
    wall, span = timeline.bubble
    yield "time", number(timeline.makespan), "from the first start to the last end"
    yield "bubble, wall", percent(wall), "idle share of all devices within that time"
    yield (
        "bubble, span",
        percent(span),
        f"the busiest device, within the longest span of one, {_longest_span(timeline)}",
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


def _settled(timeline: Timeline, steady: Steady | None) -> Iterator[tuple[str, str, str]]:
    """What counts where steps do not end together."""
    if steady is None:
        return
    program = timeline.program
    yield "steady period", number(steady.period), "seconds per update, once settled"
    yield "steady bubble", percent(steady.bubble), "idle share of all devices, once settled"
    versions = " ".join(map(str, resident_versions(program)))
    yield "versions", versions, "most weight versions kept, for each stage"
    yield "staleness", " ".join(map(str, staleness(program))), "updates behind, for each stage"


def _longest_span(timeline: Timeline) -> str:
    return number(float(timeline.device_spans.max()))


def _devices(timeline: Timeline) -> tuple[list[str], list[list[str]]]:
    """A row for each device; a cause that never occurs has no column, but for the wire."""
    waits: defaultdict[tuple[Cause, int], float] = defaultdict(float)
    for stretch in timeline.idle:
        waits[stretch.cause, stretch.device] += stretch.seconds
    present = {cause for cause, _ in waits} | {Cause.WIRE}
    causes = [cause for cause in Cause if cause in present]
    columns = ["device", "work", "idle", *map(_heading, causes), "peak", "memory"]
    rows = []
    for device, (work, peak, memory) in enumerate(
        zip(timeline.device_work, timeline.peak_activations, timeline.memory.peaks, strict=True)
    ):
        idle = [waits[cause, device] for cause in causes]
        rows.append([str(device), *map(number, [work, sum(idle), *idle, peak, memory])])
    return columns, rows


def _heading(cause: Cause) -> str:
    """A wait for the wire is communication that nothing hides."""
    return "exposed" if cause.is_wire else cause.value


def _critical(timeline: Timeline) -> str:
    """How long the path is, what it is made of, and both its ends."""
    program, path = timeline.program, timeline.critical_path.actions
    kinds = Counter(Kind(int(program.actions.kind[action])).name for action in path)
    made_of = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    words = [f"{token(program, a)} on {program.device_of[a]}" for a in path]
    if len(words) > 2 * ENDS + 1:
        words = [*words[:ENDS], f"... {len(words) - 2 * ENDS} more ...", *words[-ENDS:]]
    return f"critical path: {len(path)} actions ({made_of})\n  {' > '.join(words)}"
