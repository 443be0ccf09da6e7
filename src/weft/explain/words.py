"""Words: an explanation for people, in sections of sentences and a table each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

from weft.draw.caption import percent, title
from weft.draw.legend import WORDS
from weft.draw.marks import Mark, marker
from weft.draw.units import Unit, memory_unit, time_unit
from weft.explain.account import Account
from weft.explain.explanation import Explanation
from weft.explain.options import Option
from weft.explain.path import Leg
from weft.timeline import Cause, Idle, Timeline

Item = TypeVar("Item")

MEANINGS = {
    Cause.WARM_UP: "nothing has reached the device yet",
    Cause.VALUE: "another device has not computed what comes next",
    Cause.WIRE: "what comes next is computed and on its way",
    Cause.MEMORY: "something else is ready and would not fit",
    Cause.ORDER: "something else is ready, but the program runs another first",
    Cause.COOL_DOWN: "its work is done, the step is not",
}
TOLD = 3  # names at the start of a leg, and stretches of a device
MOST_LEGS = 8
MOST_DEVICES = 16


class Section(NamedTuple):
    """Sentences, and a table below them where there are rows."""

    lines: tuple[str, ...]
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def told(explanation: Explanation) -> Iterator[Section]:
    """The sections, in the order in which one asks."""
    yield _time(explanation)
    if explanation.causes:
        yield _devices(explanation)
    if explanation.timeline.makespan > 0:
        yield _path(explanation)
    yield _memory(explanation)
    yield _helps(explanation)


# time


def _time(explanation: Explanation) -> Section:
    """How much is idle, and mostly why."""
    timeline = explanation.timeline
    unit, wall = time_unit(timeline), timeline.bubble.wall
    idle = sum(explanation.causes.values())
    steps = timeline.program.steps
    lines = [
        title(timeline.program),
        "",
        f"{'A step takes' if steps == 1 else f'The {steps} steps take'}"
        f" {unit.amount(timeline.makespan)}: of all devices' time {percent(1 - wall)} is work and"
        f" {percent(wall)} is idle.",
    ]
    if not idle:
        return Section((*lines, "No device ever waits."))
    cause, most = next(iter(explanation.causes.items()))
    lines.append(
        f"The biggest cause, {unit.number(most)} of {unit.amount(idle)}, is {cause.value}:"
        f" {MEANINGS[cause]}."
    )
    rows = tuple(
        (cause.value, unit.number(seconds), percent(seconds / idle), MEANINGS[cause])
        for cause, seconds in explanation.causes.items()
    )
    return Section((*lines, ""), ("idle", *_in("time", unit), "share", "because"), rows)


def _devices(explanation: Explanation) -> Section:
    """For each device, how long it is idle and in which stretches."""
    timeline = explanation.timeline
    unit = time_unit(timeline)
    shown = _ends(explanation.accounts, MOST_DEVICES)
    rows = tuple(
        (
            str(account.device),
            unit.number(account.work),
            unit.number(account.idle),
            _why(timeline, account, unit),
        )
        for account in shown
    )
    idlest = max(
        explanation.accounts, key=lambda account: (round(account.idle, 9), -account.device)
    )
    line = (
        f"Device {idlest.device} is idle {unit.number(idlest.idle)} of"
        f" {unit.amount(timeline.makespan)}{_left_out(explanation.accounts, shown)}."
    )
    return Section(("", line), ("device", "work", "idle", "longest waits"), rows)


def _left_out(everything: Sequence[object], shown: Sequence[object]) -> str:
    hidden = len(everything) - len(shown)
    return f"; {hidden} devices in between are left out" if hidden else ""


def _why(timeline: Timeline, account: Account, unit: Unit) -> str:
    """The longest stretches; equal ones behind each other in one phrase."""
    phrases = []
    for stretch in account.stretches[:TOLD]:
        phrases.append(f"{unit.number(stretch.seconds)} {_because(timeline, stretch)}")
    grouped = [(phrase, len(list(same))) for phrase, same in groupby(phrases)]
    words = [phrase if count == 1 else f"{count} x {phrase}" for phrase, count in grouped]
    rest = account.stretches[TOLD:]
    if rest:
        seconds = sum(stretch.seconds for stretch in rest)
        words.append(f"{unit.number(seconds)} in {len(rest)} more")
    return "; ".join(words) or "never idle"


def _because(timeline: Timeline, stretch: Idle) -> str:
    """What a stretch waits for."""
    if stretch.cause is Cause.COOL_DOWN:
        return "cool-down"
    if stretch.before is None or stretch.waits_for is None:
        return f"{stretch.cause.value}"
    before, awaited = name(timeline, stretch.before), name(timeline, stretch.waits_for)
    device = int(timeline.program.device_of[stretch.waits_for])
    return f"{stretch.cause.value} ({before} needs {awaited} of device {device})"


# the critical path


def _path(explanation: Explanation) -> Section:
    """Its legs, and what they are made of."""
    timeline, found = explanation.timeline, explanation.path
    unit = time_unit(timeline)
    kinds = [
        f"{WORDS.get(kind, kind.name.lower())} {unit.number(seconds)}"
        for kind, seconds in found.kinds.items()
        if seconds > 0
    ]
    if found.waiting > 1e-9 * timeline.makespan:
        kinds.append(f"on the way between devices {unit.number(found.waiting)}")
    legs = _ends(found.legs, MOST_LEGS)
    hidden = len(found.legs) - len(legs)
    rows = [
        (unit.number(leg.start), unit.number(leg.end - leg.start), *_leg(timeline, leg))
        for leg in legs
    ]
    if hidden:
        rows.insert(len(legs) // 2, ("...", "", f"{hidden} more", ""))
    line = f"The critical path has {found.actions} actions: {', '.join(kinds)}."
    return Section(("", line), ("from", "takes", "actions", "on"), tuple(rows))


def _leg(timeline: Timeline, leg: Leg) -> tuple[str, str]:
    """What is done, and where."""
    if leg.is_passed_on:
        devices = [str(device) for device in _ends(leg.devices, 2 * TOLD)]
        if len(devices) < len(leg.devices):
            devices.insert(len(devices) // 2, "...")
        return name(timeline, leg.actions[0]), f"device {' > '.join(devices)}"
    names = [name(timeline, action) for action in leg.actions]
    if len(names) > 2 * TOLD:
        names = [*names[:TOLD], "...", *names[-TOLD:]]
    return " ".join(names), f"device {leg.devices[0]}"


# memory


def _memory(explanation: Explanation) -> Section:
    """The fullest device, and all of them by category."""
    timeline = explanation.timeline
    unit, capacity = memory_unit(timeline), timeline.cost.memory.capacity
    fullest = max(explanation.holdings, key=lambda holding: (holding.peak, -holding.device))
    parts = [f"{category.value} {unit.number(s)}" for category, s in fullest.categories.items()]
    when = ""
    if fullest.action is not None and fullest.time > 0:
        time = time_unit(timeline).amount(fullest.time)
        when = f", from {name(timeline, fullest.action)} at {time} on"
    limit = f" of {unit.amount(capacity)}" if capacity < float("inf") else ""
    line = (
        f"Device {fullest.device} holds most, {unit.amount(fullest.peak)}{limit}{when}:"
        f" {', '.join(parts)}."
    )
    used = {category: None for holding in explanation.holdings for category in holding.categories}
    rows = tuple(
        (
            str(holding.device),
            unit.number(holding.peak),
            *(unit.number(holding.categories.get(category, 0.0)) for category in used),
        )
        for holding in _ends(explanation.holdings, MOST_DEVICES)
    )
    columns = ("device", *_in("peak", unit), *(category.value for category in used))
    return Section(("", line), columns, rows)


# what would help


def _helps(explanation: Explanation) -> Section:
    """Each with the time and the memory that it comes to."""
    timeline = explanation.timeline
    now = timeline.makespan, max(timeline.memory.peaks)
    rows = [("as it is", *_figures(timeline, *now), "")]
    respects: dict[Option, list[str]] = {}
    for respect, option in explanation.better.items():
        respects.setdefault(option, []).append(respect)
    for option, best_at in respects.items():
        figures = _figures(timeline, option.seconds, option.memory)
        rows.append((f"{option.title}, {_stages(option)}", *figures, ", ".join(best_at)))
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
    best = explanation.better.get("fastest without more memory")
    best = best or explanation.better.get("fastest")
    if best is not None:
        saved = 1 - best.seconds / timeline.makespan
        yield f"What would help, by simulation: {best.title} saves {percent(saved)} of the time."
    else:
        yield "What would help, by simulation: no other schedule is faster at this shape."
    if explanation.larger is not None:
        larger, unit = explanation.larger, time_unit(timeline)
        each = timeline.makespan / timeline.program.microbatches
        yield (
            f"With {larger.microbatches} microbatches instead of {timeline.program.microbatches},"
            f" one takes {unit.number(larger.seconds / larger.microbatches)} instead of"
            f" {unit.amount(each)}: the idle share is then {percent(larger.bubble)}."
        )


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


# small things


def name(timeline: Timeline, action: int) -> str:
    """An action as pictures label it: F4'."""
    program = timeline.program
    slot = int(program.slot_of[action])
    marks: tuple[Mark, ...] = marker(program)(slot)
    mark = marks[action - int(program.first_of_slot[slot])]
    return mark.name


def _in(heading: str, unit: Unit) -> tuple[str]:
    return (f"{heading}, {unit.name}" if unit.name else heading,)


def _ends(items: Sequence[Item], most: int) -> Sequence[Item]:
    """The first and the last of too many."""
    return items if len(items) <= most else [*items[: most // 2], *items[-most // 2 :]]
