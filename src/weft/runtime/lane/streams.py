"""Streams: a GPU drives each lane on a stream of its own, and the host only launches.

    compute   F2  B0  B1    ·  UPDATE      waits for the event of the sum
    reduce            REDUCE ─┘            waits for the event of the last backward
    wire         S2  S0  S1                each waits for the event of what it sends

The host launches all of it in one order, and waits for no stream: where an action reads what
another host has to launch, it waits for that host alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from weft.errors import WeftError
from weft.ir.kinds import Stream
from weft.ir.program import Program
from weft.runtime.device.accelerator import Accelerator, DeviceStream
from weft.runtime.lane.gates import Across, Steps, gated
from weft.runtime.lane.steps import GatherWeights, Reduce, Step
from weft.runtime.lane.walk import Entry, Plan, blamed
from weft.runtime.ranks.clock import Recording

OFFERING = (Reduce, GatherWeights)


class EventGate:
    """Opened and passed by streams: an event, recorded anew in each lap."""

    __slots__ = ("_accelerator", "_event")

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator, self._event = accelerator, accelerator.event()

    def open(self, lap: int) -> None:
        self._event.record(self._accelerator.entered)

    def pass_through(self, lap: int) -> None:
        self._accelerator.entered.wait_event(self._event)


class Offering:
    """A step after which something is offered to other copies, on the stream of sums."""

    __slots__ = ("_accelerator", "_event", "_offers", "_step", "_stream")

    def __init__(
        self,
        step: Step,
        offers: Sequence[Reduce | GatherWeights],
        accelerator: Accelerator,
        stream: DeviceStream,
    ) -> None:
        self._step, self._offers, self._accelerator = step, offers, accelerator
        self._stream, self._event = stream, accelerator.event()

    def wait(self, lap: int) -> None:
        self._step.wait(lap)

    def run(self, lap: int) -> None:
        self._step.run(lap)
        back = self._accelerator.entered
        self._event.record(back)
        self._stream.wait_event(self._event)
        self._accelerator.enter(self._stream)
        for step in self._offers:
            step.offer(lap)
        self._accelerator.enter(back)


class Streams:
    """Drives a rank's lanes on streams of its device."""

    has_threads = False

    def __init__(self, program: Program, accelerator: Accelerator) -> None:
        self._program, self._accelerator = program, accelerator
        self._names = {
            row: stream
            for row, lane in enumerate(program.lane_of.tolist())
            if (stream := program.lanes[lane].stream) is not Stream.COMPUTE
        }
        used = dict.fromkeys(self._names.values())
        self._side = {stream: accelerator.stream(stream.value) for stream in used}
        self._stream_of = {row: self._side[name] for row, name in self._names.items()}
        self._ends = {stream: accelerator.event() for stream in self._side}

    def streams(self) -> Mapping[int, Stream]:
        return self._names

    def joined(self, steps: Steps, closings: Steps, across: Across) -> tuple[Steps, Steps]:
        """With events between streams; gradients are offered to other copies once they are there.

        A sum waits until other hosts have offered theirs. They do so before they wait for a sum
        themselves, so that none waits for what a sum is in the way of.
        """
        found = gated(steps, closings, across, lambda: EventGate(self._accelerator))
        made, closed = dict(found.steps), dict(found.closings)
        for row, readers in self._sums_after(steps, closings).items():
            chosen, key = (closed, ~row) if row < 0 else (made, row)
            offers = [step for one in readers if isinstance(step := steps[one], OFFERING)]
            stream = self._side[Stream.REDUCE]
            chosen[key] = Offering(chosen[key], offers, self._accelerator, stream)
        return made, closed

    def gate(self) -> EventGate:
        return EventGate(self._accelerator)

    def _sums_after(self, steps: Steps, closings: Steps) -> dict[int, list[int]]:
        """After which closings (~row) and sums gradients may be there that a sum reads.

        And after which updates the weights that a gather reads.
        """
        found: dict[int, list[int]] = {}
        for row, step in steps.items():
            if isinstance(step, Reduce):
                for producer, _ in self._program.dependencies.read_by(row):
                    if producer in closings or isinstance(steps.get(producer), Reduce):
                        key = ~producer if producer in closings else producer
                        found.setdefault(key, []).append(row)
            elif isinstance(step, GatherWeights):
                for producer, _ in self._program.dependencies.read_by(row):
                    if producer in steps:
                        found.setdefault(producer, []).append(row)
        return found

    def run(self, plan: Plan, lap: int, recording: Recording) -> None:
        compute = self._accelerator.entered
        try:
            for entries in plan.threads.values():
                self._launch(entries, lap, recording, compute)
        except BaseException:
            self._accelerator.enter(compute)
            with suppress(RuntimeError):  # of a device that is at fault
                self.finish()  # others write to memory that is free again soon
            raise
        finally:
            self._accelerator.enter(compute)

    def _launch(
        self, entries: Sequence[Entry], first: int, recording: Recording, compute: DeviceStream
    ) -> None:
        """As `walk` runs them, each on the stream of its lane."""
        now, log, row = recording.now, recording.log.append, 0
        enter, stream_of, at = self._accelerator.enter, self._stream_of, compute
        try:
            for row, lap, step in entries:
                stream = stream_of.get(row, compute)
                if stream is not at:
                    enter(stream)
                    at = stream
                lap += first
                step.wait(lap)
                start = now()
                step.run(lap)
                log((row, lap, start, now()))
        except WeftError:
            raise
        except Exception as error:
            raise blamed(self._program, row, error) from error

    def finish(self) -> None:
        """What is launched next comes after all that was: also after what other lanes do."""
        self._wait_for([*self._side])

    def end_step(self) -> None:
        """The same but for the stream of gathers, of which each is waited for by its event."""
        self._wait_for([name for name in self._side if name is not Stream.REDUCE])

    def _wait_for(self, streams: Sequence[Stream]) -> None:
        compute = self._accelerator.begin()
        for name in streams:
            self._ends[name].record(self._side[name])
            compute.wait_event(self._ends[name])

    def restart(self) -> None:
        """Events know no laps."""

    def close(self) -> None:
        """Nothing was started."""
