"""The lanes of a process, ready to run as often as asked."""

from __future__ import annotations

import torch

from weft.cost import Cost
from weft.ir.kinds import Stream
from weft.ir.program import Program
from weft.lower import offloads
from weft.runtime.device.accelerator import accelerator_of
from weft.runtime.device.link import assumed
from weft.runtime.lane.bind import Binder
from weft.runtime.lane.plan import Planner
from weft.runtime.lane.room import with_room
from weft.runtime.lane.streams import Streams
from weft.runtime.lane.threads import Threads
from weft.runtime.lane.walk import Drive, InTurn, Plan
from weft.runtime.ranks.clock import Recording
from weft.runtime.transport import Transport
from weft.runtime.transport.loopback import Loopback

BESIDE = Stream.EXPERTS, Stream.OFFLOAD, Stream.ONLOAD


class Lanes:
    """What a process runs of a program: planned by its cost, driven as its transport allows."""

    def __init__(
        self, binder: Binder, transport: Transport, cost: Cost | None, device: torch.device
    ) -> None:
        self.binder, self._transport, self._ring = binder, transport, binder.ring
        self.drive = _drive(binder.program, transport, device)
        if cost is None and offloads(binder.program):
            cost = assumed(binder.program)  # else nothing would take time to come back
        self._planner = Planner(binder, with_room(binder.program, cost), self.drive)
        self.digest = self._planner.digest  # of the order in which actions are launched
        self._left = 0  # updates whose gathers the last step may have left to the next
        self._has_failed = False

    def run(self, given: int, recording: Recording) -> None:
        """Run as far as that many microbatches reach, counted from the start.

        In a periodic program a sum may wait for what another rank computes with the next of them.
        """
        plan = self._planner.until(given)
        if self._ring.is_periodic:
            self._go_on(plan, recording)
            return
        self.binder.forget()
        recording.begin()
        self._transport.begin(plan.incoming, plan.outgoing)
        lap = given // self._ring.numbers - 1
        self._has_failed = True  # unless it ends
        self.drive.run(plan, lap, recording)
        if self._planner.gathers.are_left:
            self.drive.end_step()
            self._left = (lap + 1) * self._ring.updates
            recording.end_with(self.finish)
        else:
            self.drive.finish()
        self._has_failed = False

    @property
    def are_gathering(self) -> bool:
        """Whether a synchronous step has left gathers to the next one."""
        return self._left > 0

    def finish(self) -> None:
        """Wait for the gathers that a synchronous step has left to the next one."""
        if not self._left:
            return
        if self._has_failed:
            self._planner.gathers.wait(self._left)  # what they have gathered, they have
        else:
            self._has_failed = True  # unless it ends
            self.drive.finish()
            self._has_failed = False
        self._left = 0

    def drain(self, given: int, recording: Recording) -> None:
        """Run all that is left of the microbatches that were given."""
        self._go_on(self._planner.drained(given), recording)
        self.drive.finish()

    def _go_on(self, plan: Plan, recording: Recording) -> None:
        self._transport.go_on(plan.incoming, plan.outgoing)
        recording.begin()
        self.drive.run(plan, 0, recording)

    def restart(self) -> None:
        """Begin again with the first microbatch, once drained."""
        self._left = 0
        self._planner.restart()
        self.drive.restart()

    def skip(self, given: int) -> None:
        """Go on from the start as if as many microbatches had been given, and drained."""
        self._planner.skip(given)

    def close(self) -> None:
        self.drive.close()


def _drive(program: Program, transport: Transport, device: torch.device) -> Drive:
    accelerator = accelerator_of(device)
    if isinstance(transport, Loopback) and not (accelerator and _has_work_beside(program)):
        return InTurn(program)
    return Threads(program, device) if accelerator is None else Streams(program, accelerator)


def _has_work_beside(program: Program) -> bool:
    """Whether a device does something while it computes, though all are in one process."""
    return any(lane.stream in BESIDE for lane in program.lanes)
