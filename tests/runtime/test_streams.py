"""Streams: whatever order a device takes, nothing runs before what it reads."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.runtime.fake_device import FakeDevice
from tests.runtime.hosts import RECEIVES, Hosts
from weft.cost import Cost, Link, Share, evened
from weft.ir.kinds import Kind, Layer, Stream
from weft.ir.program import Program
from weft.lower import executable, experts, launched_after, offload, one_wire, replicated
from weft.lower.meetings import singly
from weft.runtime.lane.gates import Across, Steps
from weft.runtime.lane.plan import Planner
from weft.runtime.lane.ring import Ring
from weft.runtime.lane.steps import Reduce
from weft.runtime.lane.streams import EventGate, Streams
from weft.runtime.lane.walk import Entry, Plan
from weft.runtime.lane.wires import ends_of_groups, groups_in
from weft.runtime.ranks.clock import Recording
from weft.schedules import REGISTRY, Shape, wpipe
from weft.simulate import simulate

ORDERS = range(20)


class Launch:
    """A step that is a launch of its row."""

    def __init__(self, device: FakeDevice, row: int) -> None:
        self._device, self._row = device, row

    def wait(self, lap: int) -> None: ...

    def run(self, lap: int) -> None:
        self._device.launch(self._row)


class Cut(Streams):
    """Streams that leave out some waits: of each pair (who is waited for, who waits)."""

    left_out: tuple[Stream | None, Stream | None] | None = None
    pairs: set[tuple[Stream | None, Stream | None]]

    def joined(self, steps: Steps, closings: Steps, across: Across) -> tuple[Steps, Steps]:
        streams = self.streams()

        def pair(producer: int, consumer: int) -> tuple[Stream | None, Stream | None]:
            return streams.get(producer), streams.get(consumer)

        self.pairs = {pair(p, c) for c, found in across.items() for p in found}
        kept = {c: [p for p in found if pair(p, c) != self.left_out] for c, found in across.items()}
        return super().joined(steps, closings, {c: found for c, found in kept.items() if found})


def bound(program: Program, device: int | None, fake: FakeDevice, cost: Cost | None = None) -> Any:
    """What a planner asks of a binder, with launches for steps."""
    ring = Ring(program)
    kind = ring.program.actions.kind
    rows = np.flatnonzero(owned(ring.program, device)).tolist()
    groups = groups_in(ring, cost)
    return SimpleNamespace(
        ring=ring,
        program=ring.program,
        devices=range(program.devices) if device is None else range(device, device + 1),
        steps={row: Launch(fake, row) for row in rows},
        closings={},
        wires=SimpleNamespace(
            sends={},
            receives={r: [] for r in rows if kind[r] in RECEIVES},
            ends=ends_of_groups(ring.program, groups),
            after=launched_after(ring.program, groups, evened(cost)),
        ),
    )


def owned(program: Program, device: int | None) -> NDArray[np.bool_]:
    """Rows of a device, or of all that are in one process."""
    is_its = program.device_of == device
    return np.ones_like(is_its) if device is None else is_its


def reads(program: Program, device: int | None) -> Iterator[tuple[int, int]]:
    """Rows of a process that read others of it, as (producer, consumer), through messages too."""
    needs, is_own = program.dependencies, owned(program, device)
    is_receive = np.isin(program.actions.kind, RECEIVES)
    pairs = [*zip(needs.producer.tolist(), needs.consumer.tolist(), strict=True)]
    sent = {consumer: producer for producer, consumer in pairs if is_receive[consumer]}
    for producer, consumer in pairs:
        before = sent.get(producer, producer)
        if is_own[before] and is_own[consumer] and not is_receive[consumer]:
            yield before, consumer


def launched(
    program: Program,
    device: int | None,
    left_out: tuple[Stream | None, Stream | None] | None = None,
) -> FakeDevice:
    """A fake device with all launches of a step, or of some updates."""
    fake = FakeDevice()
    binder = bound(program, device, fake)
    drive = Cut(binder.program, fake)
    drive.left_out = left_out
    planner = Planner(binder, simulate(binder.program), drive)
    drive.run(planner.until(program.microbatches), 0, Recording(fake))
    drive.finish()
    fake.pairs = drive.pairs
    return fake


def is_in_order(program: Program, device: int | None, fake: FakeDevice, seed: int) -> bool:
    place = {row: index for index, row in enumerate(fake.run(seed))}
    pairs = [pair for pair in reads(program, device) if {*pair} <= place.keys()]
    assert pairs
    return all(place[before] < place[after] for before, after in pairs)


def program_of(name: str) -> Program:
    schedule = REGISTRY[name]
    least, most = schedule.stages_per_device
    shape = Shape(devices=4, microbatches=8, stages_per_device=least if most else 2, updates=4)
    return schedule.program(shape)


PROGRAMS = {
    "1f1b": executable(program_of("1f1b")),
    "zbv": executable(program_of("zbv")),
    "chimera": executable(program_of("chimera")),
    "sharded": executable(program_of("chimera"), is_sharded=True),
    "offload": executable(offload(simulate(program_of("interleaved-1f1b")))),
    "experts": executable(experts(program_of("kimi-k2"))),
    "pieces": executable(
        offload(simulate(experts(program_of("1f1b"), layers=[[Layer.PLAIN] * 3] * 4)))
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_runs_before_what_it_reads(name: str) -> None:
    program = PROGRAMS[name]
    for device in range(program.devices):
        for seed in ORDERS:
            assert is_in_order(program, device, launched(program, device), seed)


@pytest.mark.parametrize("name", PROGRAMS)
def test_nor_where_all_devices_are_in_one_process(name: str) -> None:
    """There, nobody waits for a message but the stream that reads it."""
    program = PROGRAMS[name]
    for seed in ORDERS:
        assert is_in_order(program, None, launched(program, None), seed)


@pytest.mark.parametrize("name", PROGRAMS)
def test_waits_between_streams_are_needed(name: str) -> None:
    """Without the waits of one stream for another, some order of the device is wrong."""
    program, device = PROGRAMS[name], 1
    pairs = launched(program, device).pairs
    assert pairs
    for pair in pairs:
        found = [is_in_order(program, device, launched(program, device, pair), s) for s in ORDERS]
        assert not all(found), f"nothing needs the waits of {pair[1]} for {pair[0]}"


def test_what_comes_back_waits_until_it_has_left() -> None:
    """In segments, too, whether all leave once the last has run or each by itself."""
    cut = executable(offload(simulate(experts(program_of("kimi-k2")))))
    for program in (PROGRAMS["offload"], cut, PROGRAMS["pieces"]):
        fake = launched(program, 1)
        assert (Stream.OFFLOAD, Stream.ONLOAD) in fake.pairs
        assert is_in_order(program, 1, fake, seed=0)


@pytest.mark.parametrize("name", ["offload", "pieces"])
def test_what_comes_back_is_launched_before_what_it_starts_beside(name: str) -> None:
    """Its memory is that of where the computation is by then."""
    program = PROGRAMS[name]
    unit = Share().cost(program)
    cost = replace(unit, network=replace(unit.network, host=Link(bandwidth=1.5)))
    timeline, fake = simulate(program, cost), FakeDevice()
    binder = bound(program, 0, fake)
    plan = Planner(binder, timeline, Streams(program, fake)).until(program.microbatches)
    place = {entry.row: index for index, entry in enumerate(plan.threads[Stream.COMPUTE])}
    computed = np.flatnonzero(program.is_on_compute[program.lane_of] & (program.device_of == 0))
    loads = np.flatnonzero((program.actions.kind == Kind.ONLOAD) & (program.device_of == 0))
    assert len(loads)
    for row in loads.tolist():
        began = timeline.start[computed] <= timeline.start[row]
        beside = computed[began & (timeline.end[computed] > timeline.start[row])]
        assert all(place[row] < place[other] for other in beside.tolist())
        ended = computed[timeline.end[computed] <= timeline.start[row]]
        late = [other for other in ended.tolist() if place[other] > place[row]]
        assert len(late) <= 1  # what it has to leave before


def test_the_host_launches_on_the_stream_of_each_lane() -> None:
    program = PROGRAMS["chimera"]
    fake = launched(program, 0)
    names = {lane.stream for lane in program.lanes if lane.device == 0}
    assert names == {Stream.COMPUTE, Stream.WIRE, Stream.REDUCE}
    for name in names:
        rows = [row for row in fake.stream(name.value).launches if isinstance(row, int)]
        assert rows
        assert all(program.lanes[program.lane_of[row]].stream is name for row in rows)


def test_what_follows_a_step_comes_after_all_of_its_streams() -> None:
    program = PROGRAMS["1f1b"]
    for seed in ORDERS:
        again = launched(program, 0)
        again.launch("the next step")
        assert again.run(seed)[-1] == "the next step"


def test_an_event_is_recorded_anew_in_each_lap() -> None:
    """Who passes a gate in a lap waits for that lap, not for the one before."""
    for seed in ORDERS:
        fake = FakeDevice()
        gate = EventGate(fake)
        for lap in range(3):
            fake.launch(f"computed {lap}")
            gate.open(lap)
            fake.enter(fake.stream("reduce"))
            gate.pass_through(lap)
            fake.launch(f"read {lap}")
            fake.enter(fake.chosen)
        order = fake.run(seed)
        for lap in range(3):
            assert order.index(f"computed {lap}") < order.index(f"read {lap}")


def test_after_an_error_launches_go_where_they_went_before() -> None:
    program = PROGRAMS["1f1b"]
    fake = FakeDevice()
    drive = Streams(program, fake)

    class Broken:
        def wait(self, lap: int) -> None: ...

        def run(self, lap: int) -> None:
            raise ValueError("no")

    row = int(np.flatnonzero(program.actions.kind == Kind.SEND_ACTIVATION)[0])
    with pytest.raises(Exception, match="no"):
        drive.run(Plan(threads={Stream.COMPUTE: [Entry(row, 0, Broken())]}), 0, Recording(fake))
    assert fake.entered is fake.chosen


# sums


class Offered:
    """Stands for an exchange: what it does is a launch."""

    def __init__(self, device: FakeDevice, row: int) -> None:
        self._device, self._row = device, row

    def offer(self, update: int) -> None:
        self._device.launch(f"offer {self._row}")

    def collect(self, update: int) -> None: ...

    def sum_up(self, update: int) -> None:
        self._device.launch(self._row)


def test_gradients_are_offered_once_they_are_closed_on_the_stream_of_sums() -> None:
    """So that no other host waits for them because this one waits for a sum."""
    program, fake = PROGRAMS["chimera"], FakeDevice()
    binder = bound(program, 0, fake)
    policy: Any = SimpleNamespace(origin=0, is_carried=lambda update: False)
    kind, stage = program.actions.kind, program.actions.stage
    sums = [row for row in binder.steps if kind[row] == Kind.REDUCE]
    for row in sums:
        binder.steps[row] = Reduce(policy, 0, 1, [Offered(fake, row)])  # type: ignore[list-item]
    last = {int(stage[row]): row for row in binder.steps if kind[row] == Kind.B}
    binder.closings = {row: Launch(fake, ~row) for row in last.values()}
    drive = Streams(binder.program, fake)
    planner = Planner(binder, simulate(binder.program), drive)
    drive.run(planner.until(program.microbatches), 0, Recording(fake))
    assert sums
    offers = [name for name in fake.stream("reduce").launches if isinstance(name, str)]
    assert sorted(offers) == sorted(f"offer {row}" for row in sums)
    order = fake.run(0)
    for row in sums:
        closing = order.index(~last[int(stage[row])])
        assert closing < order.index(f"offer {row}") < order.index(row)


def test_a_send_follows_what_it_sends_also_where_laps_overlap() -> None:
    """A stream keeps their order: one after a later gradient would wait for that."""
    program = executable(wpipe(devices=4, microbatches=8))
    for device in range(program.devices):
        fake = FakeDevice()
        binder = bound(program, device, fake)
        planner = Planner(binder, simulate(binder.program), Streams(binder.program, fake))
        kind, needs = binder.program.actions.kind, binder.program.dependencies
        laps = set()
        for update in range(1, 9):
            (entries,) = planner.until(update * program.microbatches).threads.values()
            computed = None
            for entry in entries:
                if not Kind(int(kind[entry.row])).is_wire:
                    computed = entry.row, entry.lap
                    continue
                (sent,) = (row for row, _ in needs.read_by(entry.row))
                assert computed == (sent, entry.lap)
                laps.add(entry.lap)
        assert len(laps) > 2


# hosts


def order_of(program: Program, device: int, cost: Cost | None = None) -> list[int]:
    """What the host of a device launches, closings as ~row of the last gradient of a stage."""
    fake = FakeDevice()
    binder = bound(program, device, fake, cost)
    kind, pipe, stage = program.actions.kind, program.actions.pipe, program.actions.stage
    last = {
        (int(pipe[row]), int(stage[row])): row
        for row in binder.steps
        if kind[row] in (Kind.B, Kind.W)
    }
    binder.closings = {row: Launch(fake, ~row) for row in last.values()}
    planner = Planner(binder, simulate(binder.program, cost), Streams(binder.program, fake))
    (entries,) = planner.until(program.microbatches).threads.values()
    return [entry.row for entry in entries]


def stuck(
    program: Program,
    orders: Mapping[int, list[int]] | None = None,
    groups: Mapping[int, Sequence[int]] | None = None,
) -> dict[int, int]:
    """For each device whose host cannot go on, the row that it is at."""
    orders = orders or {device: order_of(program, device) for device in range(program.devices)}
    return Hosts(program, orders, singly(program) if groups is None else groups).stuck()


SYNCHRONOUS = [schedule.name for schedule in REGISTRY if not schedule.is_asynchronous]


@pytest.mark.parametrize("norms", [False, True], ids=["", "one norm"])
@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_no_host_waits_for_one_that_waits_for_it(name: str, norms: bool) -> None:
    """One thread launches all lanes: a sum that waits for another host holds up what comes next."""
    source = program_of(name)
    shared = [range(source.stages)] if norms else []
    assert stuck(executable(source, norms=shared)) == {}


def measured(program: Program, seed: int) -> Cost:
    """As a profile might have it: stages that differ, and messages that take their time."""
    chance, unit = random.Random(seed), Share().cost(program)
    forward, back, late = (
        tuple(chance.choice([1.0, 1.02, 0.5, 3.0]) for _ in range(program.stages)) for _ in range(3)
    )
    times = replace(unit.times, forward=forward, input_grad=back, weight_grad=late)
    link = Link(chance.choice([0.0, 0.3]), chance.choice([2.0, 0.7]))
    return replace(unit, times=times, network=replace(unit.network, message=1.0, default=link))


@pytest.mark.parametrize("hosts", [4, 2], ids=["nccl", "mixed"])
@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_no_host_waits_in_a_circle_for_transfers(name: str, hosts: int) -> None:
    """Of four devices on this many hosts: what is far keeps an order, what is near does not."""
    source = program_of(name)

    def is_far(one: int, other: int) -> bool:
        return hosts * one // source.devices != hosts * other // source.devices

    lowered = executable(source, norms=[range(source.stages)])
    for cost in (None, measured(lowered, 0), measured(lowered, 1)):
        program = one_wire(lowered, evened(cost), is_ordered=is_far)
        orders = {device: order_of(program, device, cost) for device in range(program.devices)}
        assert stuck(program, orders) == {}, "each transfer by itself, as in a first run"
        assert stuck(program, orders, groups_in(Ring(program), cost)) == {}


def test_no_host_waits_in_a_circle_for_weights_that_copies_gather() -> None:
    for name in ("chimera", "dualpipe"):
        source = program_of(name)
        ties = [(0, source.stages - 1)]
        assert stuck(executable(source, is_sharded=True)) == {}
        assert stuck(executable(source, ties=ties, is_sharded=True)) == {}
    copies = replicated(REGISTRY["interleaved-1f1b"](devices=2, microbatches=4), 3)
    assert stuck(executable(copies, norms=[range(copies.stages)], is_sharded=True)) == {}


def test_hosts_that_launch_in_another_order_wait_for_each_other() -> None:
    """The first backward of device 0 in front of what device 1 needs for its gradient."""
    program = PROGRAMS["1f1b"]
    orders = {device: order_of(program, device) for device in range(program.devices)}
    first = next(row for row in orders[0] if program.actions.kind[row] == Kind.B)
    orders[0].remove(first)
    orders[0].insert(0, first)
    assert stuck(program, orders) == {0: first, 1: orders[1][0], 2: orders[2][0], 3: orders[3][0]}


def test_tied_weights_of_several_pipes_let_hosts_go_on() -> None:
    source = program_of("chimera")
    assert stuck(executable(source, ties=[(0, source.stages - 1)])) == {}
