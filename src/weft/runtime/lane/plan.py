"""Plans: what a rank launches, in one order over all of its lanes.

    order      a linear extension of the program: by simulated start, and what only has to be
               launched (a send, a sum) as soon as what it reads is there; by steps where hosts wait
               for each other and the program repeats
    threads    on a CPU the compute lane runs on the main thread, and each lane of another stream
               on one of its own; a send on that of what it sends; a message is taken by its reader

Knows rows and steps; knows no torch.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from weft.errors import WeftError
from weft.ir.actions import Index
from weft.ir.earliest import Seconds
from weft.ir.kinds import Kind, Stream
from weft.ir.program import Program
from weft.ir.values import Value
from weft.lower import StepOrder, launch_order, launched_together, step_order
from weft.runtime.lane.bind import Binder
from weft.runtime.lane.gates import Steps
from weft.runtime.lane.gathers import Gathers
from weft.runtime.lane.ring import Course, Item
from weft.runtime.lane.steps import Offload, Releasing
from weft.runtime.lane.walk import Drive, Entry, Plan
from weft.runtime.transport.message import Route
from weft.timeline import Timeline

RECEIVES = (Kind.RECV_ACTIVATION, Kind.RECV_GRADIENT)
OF_WEIGHTS = (Kind.REDUCE, Kind.UPDATE)
WAITING = (Stream.COMPUTE, Stream.ONLOAD)  # until the data are given that their actions need
AT_ONCE = -1.0  # a position before all others


class Planner:
    """Makes the plans of a process, one for each call."""

    def __init__(self, binder: Binder, timeline: Timeline, drive: Drive) -> None:
        self._binder, self._ring, self._program = binder, binder.ring, binder.program
        own = np.isin(self._program.device_of, binder.devices)
        self._waits = _waited_for(self._program, own, binder.wires.ends, binder.wires.after)
        streams = drive.streams()
        self._thread_of = streams if drive.has_threads else {}
        across = self._across(streams, is_alone=bool(own.all()))
        if drive.has_threads and not self._ring.is_periodic:
            for row, others in _before_loads(timeline, own).items():
                across[row] = [*across.get(row, ()), *others]
        self._steps, self._closings = drive.joined(binder.steps, binder.closings, across)
        self.gathers = Gathers(self._ring)
        self._steps = self.gathers.gated(self._steps, drive.gate)
        self._steps = releasing(self._steps, binder.steps, timeline)
        self._follows, self._positions = _followers(self._program), _positions(timeline)
        sums = _sums_over(self._program)
        self._order: StepOrder | None = None
        if not (drive.has_threads or own.all()):  # hosts wait for each other's parts of these
            self._follows[sums] = False
            is_waiting = len(sums) or any(lane.is_one_wire for lane in self._program.lanes)
            if self._ring.is_periodic and is_waiting:
                self._order = step_order(self._ring.source)
        self._reads: dict[int, list[int]] = {}
        self.restart()

    @property
    def digest(self) -> str:
        """What ranks compare: two orders would make them wait for each other in a circle."""
        return hashlib.sha256(self._positions.tobytes()).hexdigest()

    def restart(self) -> None:
        """Begin again with the first microbatch."""
        self._done: dict[int, int] = {}  # the last lap in which each row was planned
        self._expected: dict[int, int] = {}  # the same for receives
        self._courses: list[Course] = []
        self._receives: dict[int, Course] = {}  # by lane
        for index, lane in enumerate(self._program.lanes):
            if lane.device in self._binder.devices:
                course = Course(self._ring, lane, self._order)
                if lane.channel is not None and lane.channel.destination == lane.device:
                    self._receives[index] = course
                else:
                    self._courses.append(course)
        self._only: Plan | None = None

    def _across(self, streams: Mapping[int, Stream], *, is_alone: bool) -> dict[int, list[int]]:
        """For each row, those of other streams that it reads: gradients once they are closed.

        Whoever takes a message of another process waits for it; here it waits for the send.
        """
        found: dict[int, list[int]] = {}
        closings, kind = self._binder.closings, self._program.actions.kind
        for row, others in self._waits.items():
            apart = [
                one
                for one in others
                if streams.get(one) is not streams.get(row)
                and (is_alone or not Kind(int(kind[one])).is_wire)
            ]
            if kind[row] in OF_WEIGHTS and any(one in closings for one in apart):
                known = (one for one in apart if one in closings or kind[one] in OF_WEIGHTS)
                apart = [~one if one in closings else one for one in known]
            if apart:
                found[row] = apart
        return found

    def until(self, given: int) -> Plan:
        """What runs once as many microbatches are given; of a synchronous program all, each time.

        Other lanes follow the computation, as far as what they read is there. A host that waits for
        sums itself comes to them once all devices have the data for it.
        """
        if self._only is not None:
            return self._only
        waiting = WAITING if self._order is None else (*WAITING, Stream.REDUCE)
        lanes = [
            _Lane(course, [*course.until(given)])
            if course.lane.stream in waiting or course.lane.is_one_wire
            else _Lane(course)
            for course in self._courses
        ]
        order = self._merged(lanes)
        plan = self._planned(order)
        for item in order:
            for row in self._read_by(item.row):
                plan.incoming += self._expecting(row, item.lap)
        if not self._ring.is_periodic:
            self._only = plan
        return plan

    def drained(self, given: int) -> Plan:
        """All that is left of the microbatches that were given."""
        order = self._merged([_Lane(c, [*c.drained(given)]) for c in self._courses])
        plan = self._planned(order)
        for course in self._receives.values():
            for item in course.drained(given):
                plan.incoming += self._binder.wires.receives[item.row]
                self._expected[item.row] = item.lap
        return plan

    def skip(self, given: int) -> None:
        """Go on as if as many microbatches had been given, and drained."""
        for course in self._courses:
            self._done |= {item.row: item.lap for item in course.drained(given)}
        for course in self._receives.values():
            self._expected |= {item.row: item.lap for item in course.drained(given)}
        self.gathers.skip(given // self._ring.source.microbatches)

    def _merged(self, lanes: list[_Lane]) -> list[Item]:
        """One order over all lanes, in which nothing comes before what it reads."""
        order: list[Item] = []
        ready: list[tuple[float, int]] = []
        waiting: dict[tuple[int, int], list[int]] = {}

        def look(index: int) -> None:
            """Let a lane go on, or wait for what its next action reads."""
            item = lanes[index].next
            if item is None:
                return
            read = ((row, item.lap) for row in self._waits.get(item.row, ()))
            for row, lap in (*read, *self.gathers.before(item.row, item.lap)):
                if self._done.get(row, -1) < lap:
                    waiting.setdefault((row, lap), []).append(index)
                    return
            heapq.heappush(ready, (self._position(item), index))

        for index in range(len(lanes)):
            look(index)
        while ready:
            _, index = heapq.heappop(ready)
            item = lanes[index].take()
            order.append(item)
            self._done[item.row] = item.lap
            for other in waiting.pop((item.row, item.lap), ()):
                look(other)
            look(index)
        _end(lanes)
        return order

    def _position(self, item: Item) -> float:
        """Where an action stands in the order of launches, one lap after the other.

        Laps overlap: a follower of a new one comes before what is left of the last one. In the
        order of steps all devices have one that counts no laps.
        """
        if self._follows[item.row]:
            return AT_ONCE
        if self._order is not None:
            return item.place
        return float(self._positions[item.row] + item.lap * len(self._positions))

    def _planned(self, order: Sequence[Item]) -> Plan:
        """The steps of these, by thread."""
        plan, steps, closings = Plan(), self._steps, self._closings
        for item in order:
            thread = self._thread_of.get(item.row, Stream.COMPUTE)
            entries = plan.threads.setdefault(thread, [])
            entries.append(Entry(item.row, item.lap, steps[item.row]))
            if item.row in closings:
                entries.append(Entry(~item.row, item.lap, closings[item.row]))
            plan.outgoing += self._binder.wires.sends.get(item.row, ())
        return plan

    def _read_by(self, row: int) -> list[int]:
        """The receives that an action reads, which are not walked; looked up once."""
        found = self._reads.get(row)
        if found is None:
            read = (one for one, _ in self._program.dependencies.read_by(row))
            wanted = (one for one in read if one in self._binder.wires.receives)
            lane_of = self._program.lane_of
            found = [one for one in wanted if int(lane_of[one]) in self._receives]
            self._reads[row] = found
        return found

    def _expecting(self, row: int, lap: int) -> list[Route]:
        """The messages of its channel up to a receive, as far as they were not expected before."""
        routes, course = list[Route](), self._receives[int(self._program.lane_of[row])]
        while self._expected.get(row, -1) < lap:
            item = course.next()
            assert item is not None
            self._expected[item.row] = item.lap
            routes += self._binder.wires.receives[item.row]
        return routes


class _Lane:
    """What a lane runs in a call: what is due, or whatever can follow."""

    def __init__(self, course: Course, due: Iterable[Item] | None = None) -> None:
        self._course, self._due = course, None if due is None else deque(due)
        self.next: Item | None = None
        self._advance()

    @property
    def is_due(self) -> bool:
        """Whether something has to run that has not."""
        return self._due is not None and self.next is not None

    def take(self) -> Item:
        found = self.next
        assert found is not None
        self._advance()
        return found

    def end(self) -> None:
        """Leave what could not follow for the next call."""
        if self._due is None and self.next is not None:
            self._course.put_back(self.next)

    def _advance(self) -> None:
        if self._due is not None:
            self.next = self._due.popleft() if self._due else None
        else:
            self.next = self._course.next()


def _end(lanes: Sequence[_Lane]) -> None:
    """Leave what could not follow for the next call; what was due has run."""
    for lane in lanes:
        lane.end()
    if any(lane.is_due for lane in lanes):
        raise WeftError("no device can proceed: a deadlock; verification should say why")


def _followers(program: Program) -> NDArray[np.bool_]:
    """What only has to be launched, right after a computation whose outcome it reads.

    But for what comes back from the host, when it is needed, and transfers that keep an order;
    where there are such, it is sends by channels alone.
    """
    needs, is_computed = program.dependencies, program.is_on_compute[program.lane_of]
    found = ~is_computed & (program.actions.kind != Kind.ONLOAD)
    is_one_wire = np.array([lane.is_one_wire for lane in program.lanes], np.bool_)
    if is_one_wire.any():
        is_by_channel = np.array([lane.channel is not None for lane in program.lanes], np.bool_)
        found &= is_by_channel[program.lane_of]
    found[needs.consumer[~is_computed[needs.producer]]] = False
    return np.asarray(found)


def _sums_over(program: Program) -> Index:
    """The sums and gathers that read what several devices of the program compute."""
    needs, device = program.dependencies, program.device_of
    is_sum = np.isin(program.actions.kind, (Kind.REDUCE, Kind.GATHER))
    is_over = is_sum[needs.consumer] & (device[needs.consumer] != device[needs.producer])
    return np.unique(needs.consumer[is_over])


def _positions(timeline: Timeline) -> Seconds:
    """Where each action stands in the order in which actions are launched.

    What does not compute only has to be launched, right after what it reads; but what comes back
    from the host comes when it is needed. Transfers that keep an order have their place in it.
    """
    program, needs = timeline.program, timeline.program.dependencies
    position, ready = np.zeros((2, len(program)))
    if any(lane.is_one_wire for lane in program.lanes):
        position[launched_together(timeline)] = np.arange(len(program))
    else:
        position[launch_order(timeline)] = np.arange(len(program))
        np.maximum.at(ready, needs.consumer, position[needs.producer] + 0.5)
        at_start = program.is_on_compute[program.lane_of] | (program.actions.kind == Kind.ONLOAD)
        position = np.where(at_start, position, ready)
    _place_loads(timeline, position)
    return position


def _place_loads(timeline: Timeline, position: Seconds) -> None:
    """Launch what comes back before the computation during which it shall start.

    Its memory is that of where the computation is by then.
    """
    program = timeline.program
    computed = np.flatnonzero(program.is_on_compute[program.lane_of])
    for device in range(program.devices):
        mine = computed[program.device_of[computed] == device]
        is_here = program.device_of == device
        for row in np.flatnonzero(is_here & (program.actions.kind == Kind.ONLOAD)).tolist():
            last = int(np.searchsorted(timeline.start[mine], timeline.start[row], "right")) - 1
            if last >= 0:
                is_running = timeline.end[mine[last]] > timeline.start[row]
                position[row] = position[mine[last]] + (-0.25 if is_running else 0.25)


def _before_loads(timeline: Timeline, own: NDArray[np.bool_]) -> dict[int, list[int]]:
    """For each load, the computation that has ended when it starts, by the timeline.

    A thread would load what has just left, long before its reader: all would be on the device.
    """
    program, found = timeline.program, dict[int, list[int]]()
    is_computed = program.is_on_compute[program.lane_of] & (program.actions.kind <= Kind.R)
    is_load = own & (program.actions.kind == Kind.ONLOAD) & (timeline.end > timeline.start)
    for device in np.unique(program.device_of[is_load]).tolist():
        mine = np.flatnonzero(is_computed & (program.device_of == device))
        loads = np.flatnonzero(is_load & (program.device_of == device))
        before = np.searchsorted(timeline.end[mine], timeline.start[loads], "right") - 1
        pairs = zip(loads.tolist(), before.tolist(), strict=True)
        found |= {load: [int(mine[last])] for load, last in pairs if last >= 0}
    return found


def releasing(steps: Steps, bound: Steps, timeline: Timeline) -> Steps:
    """The steps, some of which first give back what has left for the host by their time."""
    program, found = timeline.program, dict(steps)
    computed = np.flatnonzero(program.is_on_compute[program.lane_of])
    after: dict[int, list[Offload]] = {}
    for row, step in bound.items():
        if isinstance(step, Offload):
            mine = computed[program.device_of[computed] == program.device_of[row]]
            next_ = int(np.searchsorted(timeline.start[mine], timeline.end[row] - 1e-12))
            if next_ < len(mine):  # else it is given back when it returns
                after.setdefault(int(mine[next_]), []).append(step)
    for row, offloads in after.items():
        found[row] = Releasing(found[row], offloads)
    return found


def _waited_for(
    program: Program,
    own: NDArray[np.bool_],
    ends: Mapping[int, int],
    after: Mapping[int, int],
) -> dict[int, list[int]]:
    """For each row what it reads of other lanes of this process, through messages too.

    A message that keeps an order is there for its reader once its group was launched, which may
    have to come after some action.
    """
    needs = program.dependencies
    is_receive = np.isin(program.actions.kind, RECEIVES)
    sent = dict(zip(needs.consumer[is_receive[needs.consumer]].tolist(),
                    needs.producer[is_receive[needs.consumer]].tolist(), strict=True))  # fmt: skip
    is_mine = own[needs.consumer] & ~is_receive[needs.consumer]
    is_gather = program.actions.kind[needs.consumer] == Kind.GATHER
    is_mine &= (needs.value != Value.WEIGHTS) | is_gather  # which comes in a lane of its own
    found: dict[int, list[int]] = {}
    pairs = zip(needs.consumer[is_mine].tolist(), needs.producer[is_mine].tolist(), strict=True)
    for consumer, producer in pairs:
        is_message = is_receive[producer]
        source = (ends if is_message and producer in ends else sent).get(producer, producer)
        if own[source] and program.lane_of[source] != program.lane_of[consumer]:
            found.setdefault(consumer, []).append(source)
    for receive in ends.keys() & sent.keys():
        if own[sent[receive]]:
            found.setdefault(receive, []).append(sent[receive])
    for transfer, before in after.items():
        if own[transfer] and before not in found.setdefault(transfer, []):
            found[transfer].append(before)
    return found
