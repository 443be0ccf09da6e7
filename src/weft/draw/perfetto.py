"""Perfetto: a Timeline as a trace that ui.perfetto.dev and chrome://tracing open.

    device 0   compute               F0 F1 ...      a process for each device, a track for each lane
               wire 0>1 activation   send:F0 ...    a slice for each slot
               memory: activations   ▁▂▃▂▁          a counter for each category of memory

Arrows go from what computes a value to what reads it on another device, wires or not. A second
of the timeline is a second of the trace, so that unit costs read as seconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain, groupby
from typing import TypeAlias

import numpy as np

from weft.draw.caption import title
from weft.draw.marks import Mark, marker
from weft.ir.earliest import Seconds
from weft.ir.lanes import Lane
from weft.ir.program import Program
from weft.ir.values import Value
from weft.notation.tokens import SPELLINGS, written
from weft.timeline import Timeline
from weft.timeline.memory import Curve

Event: TypeAlias = dict[str, object]

MICROSECONDS = 1e6
DIGITS = 3  # of a microsecond
FIELDS = ("stage", "microbatch", "version")


def to_perfetto(timeline: Timeline) -> str:
    """The timeline in the JSON form of trace events."""
    program = timeline.program
    events = chain(_names(program), _slices(timeline), _arrows(timeline), _counters(timeline))
    about = {"program": title(program), "measured": timeline.is_measured}
    return (
        f'{{"displayTimeUnit":"ms","otherData":{_json(about)},"traceEvents":[\n'
        + ",\n".join(map(_json, events))
        + "\n]}\n"
    )


_json = json.JSONEncoder(separators=(",", ":")).encode


def _places(program: Program) -> list[Event]:
    """Process and thread of each lane: none is 0 and no thread is numbered like a process.

    Perfetto takes 0 for an idle processor, and a thread numbered like its process for the main one.
    """
    return [
        {"pid": _process(lane.device), "tid": program.devices + 1 + index}
        for index, lane in enumerate(program.lanes)
    ]


def _process(device: int) -> int:
    return device + 1


def _names(program: Program) -> Iterator[Event]:
    for device in range(program.devices):
        process = {"ph": "M", "pid": _process(device)}
        yield {**process, "name": "process_name", "args": {"name": f"device {device}"}}
        yield {**process, "name": "process_sort_index", "args": {"sort_index": device}}
    for index, (lane, place) in enumerate(zip(program.lanes, _places(program), strict=True)):
        thread = {"ph": "M", **place}
        yield {**thread, "name": "thread_name", "args": {"name": _track(lane)}}
        yield {**thread, "name": "thread_sort_index", "args": {"sort_index": index}}


def _track(lane: Lane) -> str:
    if lane.channel is None:
        return lane.stream.value
    source, destination, direction = lane.channel
    return f"{lane.stream.value} {source}>{destination} {direction.value}"


def _slices(timeline: Timeline) -> Iterator[Event]:
    """A slice for each slot; a pair is one slice that describes two actions."""
    program = timeline.program
    marks_of, arguments_of, places = marker(program), _teller(timeline), _places(program)
    first = program.first_of_slot
    start, end = _moments(timeline, timeline.start[first]), _moments(timeline, timeline.end[first])
    columns = (first, program.lane_of[first], start, np.round(end - start, DIGITS))
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for slot, (row, lane, moment, length) in enumerate(rows):
        marks = marks_of(slot)
        yield {
            "ph": "X",
            **places[lane],
            "ts": moment,
            "dur": length,
            "name": "|".join(map(_label, marks)),
            "args": arguments_of(range(row, row + len(marks))),
        }


def _teller(timeline: Timeline) -> Callable[[range], Event]:
    """A function from the actions of a slot to all that is known of them."""
    actions = timeline.program.actions
    words = written(actions, timeline.program.graph.edges)
    fields = {name: getattr(actions, name).tolist() for name in FIELDS}
    waits = _waits(timeline, words)

    def arguments_of(rows: range) -> Event:
        arguments: Event = {"token": "|".join(words[row] for row in rows)}
        for name, column in fields.items():
            values = [column[row] for row in rows if column[row] >= 0]
            if values:
                arguments[name] = values if len(values) > 1 else values[0]
        return arguments | waits.get(rows.start, {})

    return arguments_of


def _waits(timeline: Timeline, words: list[str]) -> dict[int, Event]:
    """For each action that its device stood still for: what it waited for, and why."""
    found: dict[int, Event] = {}
    for before, stretches in groupby(timeline.idle, key=lambda stretch: stretch.before):
        if before is not None:
            *_, last = causes = list(stretches)
            found[before] = {"cause": ", ".join(stretch.cause.value for stretch in causes)}
            if last.waits_for is not None:
                found[before]["waits_for"] = words[last.waits_for]
    return found


def _label(mark: Mark) -> str:
    """What a picture calls it, after what is done where that is no computation: send:F0."""
    prefix, letter = SPELLINGS[mark.kind]
    if not prefix:
        return mark.label
    primes = "'" * mark.place
    return f"{prefix}{letter}{mark.number}{primes}" if letter else prefix[:-1] + primes


def _arrows(timeline: Timeline) -> Iterator[Event]:
    """From the middle of a slice to that of another, so that both ends lie within."""
    program, places = timeline.program, _places(timeline.program)
    lanes = program.lane_of.tolist()
    middles = _moments(timeline, (timeline.start + timeline.end) / 2).tolist()
    for number, (value, *ends) in enumerate(_messages(program)):
        message = {"id": number, "cat": "message", "name": Value(value).name.lower()}
        for kind, row in zip(({"ph": "s"}, {"ph": "f", "bp": "e"}), ends, strict=True):
            yield {**message, **kind, **places[lanes[row]], "ts": middles[row]}


def _messages(program: Program) -> Iterator[tuple[int, int, int]]:
    """Value, producer and reader of all that goes from device to device, by way of its wires."""
    dependencies = program.dependencies
    producer = program.origin[dependencies.producer]
    travels = np.isin(dependencies.value, (Value.ACTIVATION, Value.GRADIENT))
    leaves = program.device_of[producer] != program.device_of[dependencies.consumer]
    is_read = program.origin[dependencies.consumer] == dependencies.consumer
    columns = (dependencies.value, producer, dependencies.consumer)
    return zip(*(column[travels & leaves & is_read].tolist() for column in columns), strict=True)


def _counters(timeline: Timeline) -> Iterator[Event]:
    for device, curves in enumerate(timeline.memory.curves):
        for category, curve in curves.items():
            name = f"memory: {category.value}"
            for moment, level in _steps(timeline, curve):
                counter = {"ph": "C", "pid": _process(device), "ts": moment, "name": name}
                yield {**counter, "args": {"bytes": level}}


def _steps(timeline: Timeline, curve: Curve) -> Iterator[tuple[float, float]]:
    """When a curve changes, and to what; of several changes at one time, the last."""
    moments = _moments(timeline, np.maximum(curve.times, _opening(timeline)))
    is_last = np.append(np.diff(moments) > 0, True)
    return zip(moments[is_last].tolist(), curve.levels[is_last].tolist(), strict=True)


def _opening(timeline: Timeline) -> float:
    return float(timeline.start.min()) if len(timeline.start) else 0.0


def _moments(timeline: Timeline, seconds: Seconds) -> Seconds:
    """Microseconds since the first start."""
    return np.round((seconds - _opening(timeline)) * MICROSECONDS, DIGITS)
