"""Threads: a CPU drives the compute lane on the main thread, and each other lane on one of its own.

    main      F2  B0  B1  ·  UPDATE        passes a gate that the sum has opened
    reduce            REDUCE ─┘            passes a gate that the last backward has opened

So a sum, a copy to the host or the experts' communication never holds up the computation.
"""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Condition, Thread
from typing import TypeAlias

import torch

from weft.errors import WeftError
from weft.ir.kinds import Stream
from weft.ir.program import Program
from weft.runtime.lane.gates import Across, Steps, gated
from weft.runtime.lane.walk import Entry, Plan, walk
from weft.runtime.ranks.clock import Recording
from weft.runtime.stage.cast import Cast

Job: TypeAlias = Callable[[], None]


class Crew:
    """The threads of a rank, and what they wait for of each other."""

    def __init__(self) -> None:
        self.changed = Condition()
        self.failure: BaseException | None = None
        self._jobs: dict[Stream, SimpleQueue[Job | None]] = {}
        self._busy = Counter[Stream]()  # jobs that have not ended
        self._owner = os.getpid()
        self._ends_alone = False  # what is left, once this process launches nothing more

    def start(self, stream: Stream, job: Job) -> None:
        """Let a stream's thread do something."""
        if stream not in self._jobs:
            self._jobs[stream] = SimpleQueue()
            Thread(target=self._work, args=(stream, self._jobs[stream]), daemon=True).start()
        with self.changed:
            self._busy[stream] += 1
        self._jobs[stream].put(job)

    def _work(self, stream: Stream, jobs: SimpleQueue[Job | None]) -> None:
        while (job := jobs.get()) is not None:
            try:
                job()
            except BaseException as error:
                self.fail(error)
            with self.changed:
                self._busy[stream] -= 1
                self.changed.notify_all()
            del job  # which knows the pipeline

    def fail(self, error: BaseException) -> None:
        """End the waits of all threads."""
        with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()

    def finish(self) -> None:
        """Wait until all threads have done what they were to do."""
        self._wait_for([*self._jobs])
        self.check()

    def end_step(self) -> None:
        """Wait for all but gathers, for which nothing more has to be launched on any rank."""
        self._wait_for([stream for stream in self._jobs if stream is not Stream.REDUCE])
        self.check()
        self._ends_alone = True

    def _wait_for(self, streams: Sequence[Stream]) -> None:
        def is_over() -> bool:
            return self.failure is not None or not any(self._busy[one] for one in streams)

        with self.changed:
            self.changed.wait_for(is_over)

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """End all threads, after gathers that other ranks wait for."""
        for jobs in self._jobs.values():
            jobs.put(None)
        if self._ends_alone and os.getpid() == self._owner:
            self._wait_for([*self._jobs])


class Gate:
    """Opened by an action on one thread, once a lap, for actions on others."""

    def __init__(self, crew: Crew) -> None:
        self._crew, self._lap = crew, -1

    def open(self, lap: int) -> None:
        with self._crew.changed:
            self._lap = lap
            self._crew.changed.notify_all()

    def restart(self) -> None:
        """Close it: laps are counted anew."""
        self._lap = -1

    def pass_through(self, lap: int) -> None:
        """Wait until it was opened in this lap."""
        if self._lap < lap:
            with self._crew.changed:
                self._crew.changed.wait_for(lambda: self._lap >= lap or self._crew.failure)
            if self._lap < lap:
                raise WeftError(f"another lane of this device has failed: {self._crew.failure}")


class Threads:
    """Drives a rank's lanes on threads."""

    has_threads = True

    def __init__(self, program: Program, device: torch.device) -> None:
        self._program, self._device, self._crew = program, device, Crew()
        weakref.finalize(self, self._crew.close)  # threads of a pipeline that nobody knows any more
        self._gates: list[Gate] = []

    def streams(self) -> Mapping[int, Stream]:
        """A send runs on the thread of what it sends."""
        streams = [lane.stream for lane in self._program.lanes]
        rows = zip(self._program.lane_of, self._program.origin, strict=True)
        found = {}
        for row, (lane, origin) in enumerate(rows):
            is_wire = streams[lane] is Stream.WIRE
            found[row] = streams[self._program.lane_of[origin]] if is_wire else streams[lane]
        return {row: stream for row, stream in found.items() if stream is not Stream.COMPUTE}

    def joined(self, steps: Steps, closings: Steps, across: Across) -> tuple[Steps, Steps]:
        """The steps and closings, with gates where one thread reads what another computes."""
        found = gated(steps, closings, across, lambda: Gate(self._crew))
        self._gates += found.gates  # type: ignore[arg-type]
        return found.steps, found.closings

    def gate(self) -> Gate:
        self._gates.append(Gate(self._crew))
        return self._gates[-1]

    def run(self, plan: Plan, lap: int, recording: Recording) -> None:
        main = plan.threads.get(Stream.COMPUTE, [])
        others = {s: found for s, found in plan.threads.items() if s is not Stream.COMPUTE}
        cast = Cast.here(self._device)  # which a thread does not inherit
        for stream, entries in others.items():
            job = partial(self._walk, entries, lap, recording, cast)
            self._crew.start(stream, job)
        try:
            walk(self._program, main, lap, recording)
        except BaseException as error:
            self._crew.fail(error)
        self._crew.check()

    def _walk(self, entries: Sequence[Entry], lap: int, recording: Recording, cast: Cast) -> None:
        with cast.beside():
            walk(self._program, entries, lap, recording)

    def finish(self) -> None:
        self._crew.finish()

    def end_step(self) -> None:
        self._crew.end_step()

    def restart(self) -> None:
        for gate in self._gates:
            gate.restart()

    def close(self) -> None:
        self._crew.close()
