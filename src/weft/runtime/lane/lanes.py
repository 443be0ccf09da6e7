"""The lanes of a process, ready to run as often as asked."""

from __future__ import annotations

import torch

from weft.cost import Cost
from weft.ir.program import Program
from weft.runtime.device.accelerator import accelerator_of
from weft.runtime.lane.bind import Binder
from weft.runtime.lane.plan import Planner
from weft.runtime.lane.streams import Streams
from weft.runtime.lane.threads import Threads
from weft.runtime.lane.walk import Drive, InTurn, Plan
from weft.runtime.ranks.clock import Recording
from weft.runtime.transport import Transport
from weft.runtime.transport.loopback import Loopback
from weft.simulate import simulate


class Lanes:
    """What a process runs of a program: planned by its cost, driven as its transport allows."""

    def __init__(
        self, binder: Binder, transport: Transport, cost: Cost | None, device: torch.device
    ) -> None:
        self.binder, self._transport, self._ring = binder, transport, binder.ring
        self._drive = _drive(binder.program, transport, device)
        self._planner = Planner(binder, simulate(binder.program, cost), self._drive)
        self.digest = self._planner.digest  # of the order in which actions are launched

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
        self._drive.run(plan, given // self._ring.numbers - 1, recording)
        self._drive.finish()

    def drain(self, given: int, recording: Recording) -> None:
        """Run all that is left of the microbatches that were given."""
        self._go_on(self._planner.drained(given), recording)
        self._drive.finish()

    def _go_on(self, plan: Plan, recording: Recording) -> None:
        if self._transport.is_ordered:
            self._transport.go_on(plan.incoming, plan.outgoing)
        recording.begin()
        self._drive.run(plan, 0, recording)

    def restart(self) -> None:
        """Begin again with the first microbatch, once drained."""
        self._planner.restart()
        self._drive.restart()

    def skip(self, given: int) -> None:
        """Go on from the start as if as many microbatches had been given, and drained."""
        self._planner.skip(given)

    def close(self) -> None:
        self._drive.close()


def _drive(program: Program, transport: Transport, device: torch.device) -> Drive:
    if isinstance(transport, Loopback):
        return InTurn(program)
    accelerator = accelerator_of(device)
    return Threads(program, device) if accelerator is None else Streams(program, accelerator)
