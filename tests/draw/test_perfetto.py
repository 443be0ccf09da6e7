"""Traces for Perfetto: tracks, slices, arrows and counters that belong together."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from weft.cost import Link, Share
from weft.draw import to_perfetto
from weft.ir.program import Program
from weft.lower import one_wire, updates, wires
from weft.schedules import REGISTRY, chimera, dualpipev, one_f_one_b, pipedream, zbv
from weft.simulate import simulate
from weft.timeline import Category, Timeline

Event = dict[str, Any]
Track = tuple[int, int]


def timed(program: Program) -> Timeline:
    """With messages that take time, so that a wire is busy."""
    cost = Share(latency=0.25).cost(program)
    network = replace(
        cost.network,
        message=(2.0,) * len(program.graph.edges),
        default=Link(latency=0.25, bandwidth=16.0),
    )
    return simulate(program, replace(cost, network=network))


PROGRAMS = {
    "1f1b": one_f_one_b(devices=3, microbatches=5),
    "zbv, lowered": updates(wires(zbv(devices=3, microbatches=6))),
    "zbv, on one wire": one_wire(updates(wires(zbv(devices=3, microbatches=6)))),
    "pairs": dualpipev(devices=2, microbatches=6),
    "two pipes, lowered": updates(wires(chimera(devices=4, microbatches=8))),
    "versions": pipedream(devices=3, microbatches=4).unrolled(),
    "recompute": REGISTRY["gpipe"](devices=2, microbatches=3, variant="recompute"),
}
TIMELINES = {name: timed(program) for name, program in PROGRAMS.items()}

each_timeline = pytest.mark.parametrize("timeline", TIMELINES.values(), ids=TIMELINES)


def events(timeline: Timeline, *kinds: str) -> list[Event]:
    return [e for e in json.loads(to_perfetto(timeline))["traceEvents"] if e["ph"] in kinds]


def slices(timeline: Timeline) -> dict[Track, list[Event]]:
    """The slices of each track, in order."""
    found: dict[Track, list[Event]] = defaultdict(list)
    for event in events(timeline, "X"):
        found[event["pid"], event["tid"]].append(event)
    return found


def named(timeline: Timeline, kind: str) -> dict[Any, str]:
    """The names of processes or threads."""
    return {
        (event["pid"], event["tid"]) if "tid" in event else event["pid"]: event["args"]["name"]
        for event in events(timeline, "M")
        if event["name"] == kind
    }


@each_timeline
def test_a_device_is_a_process_and_a_lane_a_track(timeline: Timeline) -> None:
    program = timeline.program
    devices = named(timeline, "process_name")
    assert sorted(devices.values()) == [f"device {d}" for d in range(program.devices)]
    tracks = named(timeline, "thread_name")
    found = [(devices[process], name.split()[0]) for (process, _), name in tracks.items()]
    assert found == [(f"device {lane.device}", lane.stream.value) for lane in program.lanes]
    threads = {thread for _, thread in tracks}
    assert len(threads) == len(tracks)
    assert not threads & set(devices)


def test_a_wire_is_named_by_its_channel() -> None:
    names = named(TIMELINES["zbv, lowered"], "thread_name").values()
    assert {"compute", "wire 0>1 activation", "wire 1>0 gradient"} <= set(names)
    names = named(TIMELINES["zbv, on one wire"], "thread_name").values()
    assert set(names) == {"compute", "wire"}


@each_timeline
def test_a_track_holds_the_slots_of_its_lane(timeline: Timeline) -> None:
    program = timeline.program
    tracks = slices(timeline)
    for lane, track in enumerate(named(timeline, "thread_name")):
        first = program.first_of_slot[program.slots_of(lane)]
        here = tracks[track]
        assert [e["ts"] for e in here] == pytest.approx((timeline.start[first] * 1e6).tolist())
        lengths = (timeline.end - timeline.start)[first] * 1e6
        assert [e["dur"] for e in here] == pytest.approx(lengths.tolist())


@each_timeline
def test_slices_of_a_track_do_not_overlap(timeline: Timeline) -> None:
    for track in slices(timeline).values():
        for before, after in pairwise(track):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-3


@each_timeline
def test_every_message_is_an_arrow_between_two_slices(timeline: Timeline) -> None:
    tracks = slices(timeline)
    starts, ends = ({e["id"]: e for e in events(timeline, kind)} for kind in "sf")
    assert len(starts) == len(events(timeline, "s")) == timeline.program.messages
    assert starts.keys() == ends.keys()
    for number, start in starts.items():
        end = ends[number]
        assert start["name"] == end["name"]
        assert start["pid"] != end["pid"]
        sent, read = (enclosing(tracks[e["pid"], e["tid"]], e["ts"]) for e in (start, end))
        assert sent["ts"] + sent["dur"] <= read["ts"] + 1e-3


def enclosing(track: list[Event], moment: float) -> Event:
    (found,) = [e for e in track if e["ts"] < moment < e["ts"] + e["dur"]]
    return found


def test_an_arrow_leads_from_what_computes_to_what_reads() -> None:
    """With wires as without them."""
    shown = []
    for name in ("plain", "lowered"):
        program = zbv(devices=2, microbatches=2)
        timeline = timed(program if name == "plain" else wires(program))
        tracks = slices(timeline)
        shown.append(
            [
                enclosing(tracks[e["pid"], e["tid"]], e["ts"])["args"]["token"]
                for e in events(timeline, "s", "f")
            ]
        )
    assert sorted(shown[0]) == sorted(shown[1])
    assert shown[0][:2] == ["0F0", "1F0"]


@each_timeline
def test_counters_follow_memory_back_to_where_it_began(timeline: Timeline) -> None:
    found: dict[tuple[int, str], list[Event]] = defaultdict(list)
    for event in events(timeline, "C"):
        found[event["pid"] - 1, event["name"].removeprefix("memory: ")].append(event)
    for device, curves in enumerate(timeline.memory.curves):
        for category, curve in curves.items():
            counter = found.pop((device, category.value))
            moments = [event["ts"] for event in counter]
            assert moments == sorted(set(moments))
            levels = [event["args"]["bytes"] for event in counter]
            assert max(levels) == pytest.approx(curve.peak)
            assert levels[-1] == pytest.approx(float(curve.levels[0]), abs=1e-9)
    assert not found


def test_memory_is_shown_by_category() -> None:
    names = {event["name"] for event in events(TIMELINES["zbv, lowered"], "C")}
    assert names == {
        f"memory: {category.value}"
        for category in (Category.WEIGHTS, Category.ACTIVATIONS, Category.BUFFERS)
    }


def test_a_slice_says_what_it_waited_for_and_why() -> None:
    shown = {e["args"]["token"]: e["args"] for e in events(TIMELINES["1f1b"], "X")}
    assert shown["0F0"] == {"token": "0F0", "stage": 0, "microbatch": 0}
    assert shown["0B2"] == {
        "token": "0B2",
        "stage": 0,
        "microbatch": 2,
        "cause": "value, wire",
        "waits_for": "1B2",
    }


def test_a_pair_is_one_slice() -> None:
    pairs = [e for e in events(TIMELINES["pairs"], "X") if "|" in e["name"]]
    assert pairs[0]["name"] == "F3|B1'"
    assert pairs[0]["args"] == {"token": "0F3|3B1", "stage": [0, 3], "microbatch": [3, 1]}


def test_what_is_no_computation_says_what_it_does() -> None:
    names = {e["name"] for e in events(TIMELINES["two pipes, lowered"], "X")}
    assert {"send:F0", "recv:B0", "U'", "reduce'"} <= names


def test_versions_are_shown() -> None:
    shown = {e["args"]["token"]: e["args"] for e in events(TIMELINES["versions"], "X")}
    assert shown["2F1@1"]["version"] == 1


def test_a_measured_timeline_begins_at_0() -> None:
    timeline = TIMELINES["1f1b"]
    later = replace(timeline, start=timeline.start + 1e4, end=timeline.end + 1e4, is_measured=True)
    trace = json.loads(to_perfetto(later))
    assert trace["otherData"] == {"program": "1f1b: 3 devices, 5 microbatches", "measured": True}
    moments = [event["ts"] for event in trace["traceEvents"] if "ts" in event]
    assert min(moments) == 0
    assert max(moments) == pytest.approx(timeline.makespan * 1e6)
