"""Words: an explanation for people, in sections of sentences and a table each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import isclose
from typing import TypeVar

from weft.draw.caption import percent, title
from weft.draw.legend import WORDS
from weft.draw.marks import Mark, marker
from weft.draw.units import Unit, is_physical, memory_unit, time_unit
from weft.explain.account import Account
from weft.explain.advice import advice
from weft.explain.explanation import Explanation
from weft.explain.path import Leg
from weft.explain.section import Section
from weft.timeline import Cause, Idle, Timeline

Item = TypeVar("Item")

SHOWN = 3  # names at the start of a leg, and stretches of a device
MOST_LEGS = 8
MOST_DEVICES = 16
SHARES = (
    "Unit costs: a device's weights count 1, what a microbatch saves there 1, an input kept to"
    " recompute it nothing."
)


def in_words(explanation: Explanation) -> Iterator[Section]:
    """An explanation in sentences and tables, section by section, in the order of questions."""
    yield _time(explanation)
    if explanation.causes:
        yield _devices(explanation)
    if explanation.timeline.makespan > 0:
        yield _path(explanation)
    if any(holding.peak for holding in explanation.holdings):
        yield _memory(explanation)
    yield advice(explanation)


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
    if (settled := explanation.settled) is not None:
        lines.append(
            f"Once settled, a step takes {unit.amount(settled.period)} and"
            f" {percent(settled.bubble)} is idle."
        )
    if not idle:
        return Section((*lines, "No device ever waits."))
    lines.append(_biggest(explanation.causes, unit))
    rows = tuple(
        (cause.value, unit.number(seconds), percent(seconds / idle), cause.meaning)
        for cause, seconds in explanation.causes.items()
    )
    return Section((*lines, ""), ("idle", *_in("time", unit), "fraction", "because"), rows)


def _biggest(causes: dict[Cause, float], unit: Unit) -> str:
    """The cause that counts most, or those."""
    most, idle = max(causes.values()), sum(causes.values())
    names = [cause.value for cause, seconds in causes.items() if isclose(seconds, most)]
    share = f"{unit.number(most)} of {unit.amount(idle)}"
    if len(names) == 1:
        return f"The biggest cause, {share}, is {names[0]}."
    return f"The biggest causes, {share} each, are {', '.join(names[:-1])} and {names[-1]}."


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
    line = f"{_idlest(explanation)}{_left_out(explanation.accounts, shown)}."
    return Section(("", line), ("device", "work", "idle", "longest waits"), rows)


def _idlest(explanation: Explanation) -> str:
    """Who waits longest, unless all wait equally long."""
    unit, makespan = time_unit(explanation.timeline), explanation.timeline.makespan
    idle = [account.idle for account in explanation.accounts]
    longest = max(idle)
    whole = f"{unit.number(longest)} of {unit.amount(makespan)}"
    if all(isclose(seconds, longest) for seconds in idle) and len(idle) > 1:
        return f"Every device is idle {whole}"
    device = next(i for i, seconds in enumerate(idle) if isclose(seconds, longest))
    return f"Device {device} is idle longest, {whole}"


def _left_out(everything: Sequence[object], shown: Sequence[object]) -> str:
    hidden = len(everything) - len(shown)
    return f"; {hidden} devices in between are left out" if hidden else ""


def _why(timeline: Timeline, account: Account, unit: Unit) -> str:
    """The longest stretches; equal ones one after another in one phrase."""
    phrases = []
    for stretch in account.stretches[:SHOWN]:
        phrases.append(f"{unit.number(stretch.seconds)} {_because(timeline, stretch)}")
    grouped = [(phrase, len(list(same))) for phrase, same in groupby(phrases)]
    words = [phrase if count == 1 else f"{count} x {phrase}" for phrase, count in grouped]
    rest = account.stretches[SHOWN:]
    if rest:
        seconds = sum(stretch.seconds for stretch in rest)
        words.append(f"{unit.number(seconds)} in {len(rest)} other{'s' * (len(rest) > 1)}")
    return "; ".join(words) or "never idle"


def _because(timeline: Timeline, stretch: Idle) -> str:
    """What a stretch waits for."""
    if stretch.cause is Cause.HOST or stretch.before is None or stretch.waits_for is None:
        return stretch.cause.value
    before, awaited = _slot(timeline, stretch.before), name(timeline, stretch.waits_for)
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
        between = "between actions" if timeline.cost.overhead else "on the way between devices"
        kinds.append(f"{between} {unit.number(found.waiting)}")
    legs = _ends(found.legs, MOST_LEGS)
    hidden = len(found.legs) - len(legs)
    rows = [
        (unit.number(leg.start), unit.number(leg.end - leg.start), *_leg(timeline, leg))
        for leg in legs
    ]
    if hidden:
        rows.insert(len(legs) // 2, ("...", "", f"{hidden} more", ""))
    line = f"The critical path has {found.actions} actions, which take: {', '.join(kinds)}."
    return Section(("", line), ("from", "takes", "actions", "on"), tuple(rows))


def _leg(timeline: Timeline, leg: Leg) -> tuple[str, str]:
    """What is done, and where."""
    if leg.is_passed_on:
        devices = [str(device) for device in _ends(leg.devices, 2 * SHOWN)]
        if len(devices) < len(leg.devices):
            devices.insert(len(devices) // 2, "...")
        return name(timeline, leg.actions[0]), f"device {' > '.join(devices)}"
    names = [name(timeline, action) for action in leg.actions]
    if len(names) > 2 * SHOWN:
        names = [*names[:SHOWN], "...", *names[-SHOWN:]]
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
    notes = (SHARES,) if _is_in_shares(timeline) else ()
    return Section(("", line, *notes), columns, rows)


def _is_in_shares(timeline: Timeline) -> bool:
    """Whether memory is that of unit costs, which count weights and activations alike."""
    memory, program = timeline.cost.memory, timeline.program
    sizes = {*memory.weights, *memory.saved}
    return not is_physical(timeline) and sizes == {program.placement.share}


# small things


def name(timeline: Timeline, action: int) -> str:
    """An action as pictures label it: F4'."""
    program = timeline.program
    slot = int(program.slot_of[action])
    marks: tuple[Mark, ...] = marker(program)(slot)
    mark = marks[action - int(program.first_of_slot[slot])]
    return mark.name


def _slot(timeline: Timeline, action: int) -> str:
    """All that starts with an action: F7|I0' for a pair."""
    slot = int(timeline.program.slot_of[action])
    return "|".join(mark.name for mark in marker(timeline.program)(slot))


def _in(heading: str, unit: Unit) -> tuple[str]:
    return (f"{heading}, {unit.name}" if unit.name else heading,)


def _ends(items: Sequence[Item], most: int) -> Sequence[Item]:
    """The first and the last of too many."""
    return items if len(items) <= most else [*items[: most // 2], *items[-most // 2 :]]
