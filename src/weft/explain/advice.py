"""Advice: what would help, in words."""

from __future__ import annotations

from collections.abc import Iterator

from weft.draw.caption import percent
from weft.draw.units import memory_unit, time_unit
from weft.explain.explanation import Explanation
from weft.explain.options import Option
from weft.explain.section import Section
from weft.ir.versions import staleness
from weft.timeline import Timeline


def advice(explanation: Explanation) -> Section:
    """What would help, each with the time and the memory that it comes to."""
    timeline = explanation.timeline
    now = timeline.makespan, max(timeline.memory.peaks)
    rows = [("as it is", *_figures(timeline, *now), _behind(max(staleness(timeline.program))))]
    respects: dict[Option, list[str]] = {}
    for respect, option in explanation.better.items():
        respects.setdefault(option, []).append(respect)
    for option, best_at in respects.items():
        figures = _figures(timeline, option.seconds, option.memory)
        words = [*best_at, *filter(None, [_behind(option.staleness)])]
        rows.append((f"{option.title}, {_stages(option)}", *figures, ", ".join(words)))
    if explanation.leaner is not None:
        again = explanation.leaner
        rows.append((again.variant, *_figures(timeline, again.seconds, again.memory), ""))
    for change in explanation.changes:
        rows.append((change.words, *_figures(timeline, change.seconds, now[1]), ""))
    columns = ("instead", "time", "", "memory", "", "which is")
    return Section(("", *_verdict(explanation)), columns, tuple(rows))


def _verdict(explanation: Explanation) -> Iterator[str]:
    """The shortest answer to what would help."""
    timeline = explanation.timeline
    lean = explanation.better.get("fastest without more memory")
    best = lean or explanation.better.get("fastest")
    if best is not None:
        saved = percent(1 - best.seconds / timeline.makespan)
        steps = timeline.program.steps
        whole = "of the time" if steps == 1 else f"of these {steps} steps"
        memory = " and needs no more memory" if lean else ", with more memory"
        yield f"What would help, by simulation: {best.title} saves {saved} {whole}{memory}."
    elif explanation.tried:
        yield "What would help, by simulation: no other schedule of its sort is faster here."
    else:
        yield "What would help, by simulation:"
    if explanation.larger is not None:
        larger, unit = explanation.larger, time_unit(timeline)
        each = timeline.makespan / timeline.program.microbatches
        yield (
            f"With {larger.microbatches} microbatches instead of {timeline.program.microbatches},"
            f" each takes {unit.number(larger.seconds / larger.microbatches)} instead of"
            f" {unit.amount(each)}: the idle share is then {percent(larger.bubble)}."
        )


def _behind(updates: int) -> str:
    """How old weights in use may be, where they are not always the newest."""
    return f"weights up to {updates} update{'s' if updates > 1 else ''} old" if updates else ""


def _stages(option: Option) -> str:
    count = option.stages_per_device
    return f"{count} stage{'s' if count > 1 else ''} on a device"


def _figures(timeline: Timeline, seconds: float, memory: float) -> tuple[str, str, str, str]:
    """Time and memory, each with its change."""
    now = timeline.makespan, max(timeline.memory.peaks)
    return (
        time_unit(timeline).number(seconds),
        _difference(seconds, now[0]),
        memory_unit(timeline).number(memory),
        _difference(memory, now[1]),
    )


def _difference(value: float, now: float) -> str:
    share = value / now - 1 if now else 0.0
    return "" if abs(share) < 5e-4 else f"{100 * share:+.1f}%"
