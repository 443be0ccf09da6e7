"""Advice: what would help, in words."""

from __future__ import annotations

from collections.abc import Iterator

from weft.draw.caption import percent
from weft.draw.units import memory_unit, time_unit
from weft.explain.explanation import Explanation
from weft.explain.options import FITTING, NO_FULLER, SAME, Option
from weft.explain.relief import OFFLOADED, is_fitting
from weft.explain.section import Section
from weft.ir.versions import staleness
from weft.timeline import Category, Timeline

STATE = (Category.WEIGHTS, Category.GRADIENTS, Category.OPTIMIZER)


def advice(explanation: Explanation) -> Section:
    """What would help, each with the time and the memory that it comes to."""
    timeline = explanation.timeline
    now = timeline.makespan, max(timeline.memory.peaks)
    own = [_age(max(staleness(timeline.program))), _too_much(is_fitting(timeline))]
    rows = [("as it is", *_figures(timeline, *now), _listed(own))]
    respects: dict[Option, list[str]] = {}
    for respect, option in explanation.better.items():
        respects.setdefault(option, []).append(respect)
    for option, best_at in respects.items():
        figures = _figures(timeline, option.seconds, option.memory)
        words = _listed([*best_at, _age(option.staleness)])
        rows.append((f"{option.title}, {_stages(option)}", *figures, words))
    again = explanation.leaner
    if again is not None and all(again.title != option.title for option in respects):
        figures = _figures(timeline, again.seconds, again.memory)
        title = f"all recomputed ({again.relief.value})"
        rows.append((title, *figures, _too_much(again.is_fitting)))
    for change in explanation.changes:
        rows.append((change.words, *_figures(timeline, change.seconds, now[1]), ""))
    columns = ("instead", "time", "", "memory", "", "which is")
    return Section(("", *_verdict(explanation)), columns, tuple(rows))


def _verdict(explanation: Explanation) -> Iterator[str]:
    """The shortest answer to what would help."""
    if is_fitting(explanation.timeline) is False:
        yield _what_fits(explanation)
    else:
        yield _what_is_faster(explanation)
    if any(option.relief.is_offloading for option in explanation.better.values()):
        yield OFFLOADED
    if explanation.larger is not None and is_fitting(explanation.timeline) is not False:
        yield _with_more_microbatches(explanation.timeline, explanation.larger)


def _what_fits(explanation: Explanation) -> str:
    timeline, best = explanation.timeline, explanation.better.get(FITTING)
    if best is None:
        tried = ", and nothing else that was tried does" if explanation.tried else ""
        return f"As it is, it does not fit{tried}. {_remedy(explanation)}"
    share = best.seconds / timeline.makespan - 1
    change = f"{percent(abs(share))} {'more' if share > 0 else 'less'} time"
    return (
        "As it is, it does not fit. What would help, by simulation:"
        f" {best.title} fits, and takes {change}."
    )


def _remedy(explanation: Explanation) -> str:
    """What is left to do, by what fills the fullest device."""
    timeline = explanation.timeline
    fullest = max(explanation.holdings, key=lambda holding: holding.peak)
    state = sum(fullest.categories.get(category, 0.0) for category in STATE)
    if state > timeline.cost.memory.capacity:
        return (
            f"The weights of device {fullest.device}, their gradients and optimizer state alone are"
            " more than it has: take more devices, share its stages among several processors"
            " (--tensor-parallel), or spread optimizer state over replicas (--data-parallel)."
        )
    return (
        "Take smaller microbatches, or more devices; of a model on a device also --recompute"
        " selective, or several processors for each stage (--tensor-parallel)."
    )


def _what_is_faster(explanation: Explanation) -> str:
    timeline = explanation.timeline
    lean = explanation.better.get(NO_FULLER)
    best = lean or explanation.better.get("fastest")
    if best is not None:
        saved = percent(1 - best.seconds / timeline.makespan)
        steps = timeline.program.steps
        whole = "of the time" if steps == 1 else f"of these {steps} steps"
        memory = " and needs no more memory" if lean else ", with more memory"
        return f"What would help, by simulation: {best.title} saves {saved} {whole}{memory}."
    if explanation.tried:
        return "What would help, by simulation: no other schedule of its sort is faster here."
    return "What would help, by simulation:"


def _with_more_microbatches(timeline: Timeline, larger: Option) -> str:
    """What twice the microbatches bring, and what they take."""
    time, memory = time_unit(timeline), memory_unit(timeline)
    now = max(timeline.memory.peaks)
    each = time.amount(timeline.makespan / timeline.program.microbatches)
    words = (
        f"With {larger.microbatches} microbatches instead of {timeline.program.microbatches},"
        f" each takes {time.number(larger.seconds / larger.microbatches)} instead of {each}:"
        f" the idle fraction is then {percent(larger.bubble)}"
    )
    if larger.memory > now * (1 + SAME):
        words += f", and a device holds {memory.number(larger.memory)} instead of"
        words += f" {memory.amount(now)}"
    return f"{words}{'; that does not fit' if larger.is_fitting is False else ''}."


def _too_much(is_fitting: bool | None) -> str:
    return "more than a device has" if is_fitting is False else ""


def _listed(words: list[str]) -> str:
    return ", ".join(filter(None, words))


def _age(updates: int) -> str:
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
