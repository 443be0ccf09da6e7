"""The executor: a device's lane of actions, run as often as asked.

Knows steps; knows neither messages nor stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from torch import Tensor

from weft.errors import WeftError
from weft.ir.actions import Action
from weft.ir.lanes import Lane
from weft.ir.program import Program
from weft.notation import token
from weft.runtime.lane import steps
from weft.runtime.lane.bind import Binder, Copies, Setting
from weft.runtime.ranks.clock import Recording
from weft.runtime.stage.values import Value
from weft.runtime.transport.loopback import Loopback
from weft.runtime.transport.message import Route

Losses: TypeAlias = dict[int, steps.Loss]


class Executor:
    """Runs the compute lane of one device."""

    def __init__(self, setting: Setting, device: int, copies: Copies) -> None:
        self._setting, self._device, self._copies = setting, device, copies
        self._binder = Binder(setting, device, copies)
        self.has_run = False
        self._needs: list[list[Route]] = []
        self.steps: list[tuple[int, steps.Step]] = []
        for row, action in self._lane():
            before = len(self.incoming)
            self.steps.append((row, self._binder.step(action)))
            self._needs.append(self.incoming[before:])
        graph, forwards = setting.program.graph, self._binder.forwards
        self._losses_due = sum(not graph.successors[stage] for _, stage, _ in forwards)

    @property
    def incoming(self) -> list[Route]:
        return self._binder.incoming

    @property
    def outgoing(self) -> list[Route]:
        return self._binder.outgoing

    @property
    def losses(self) -> Losses:
        """Those that this device has computed, by microbatch."""
        return self._binder.batch.losses

    @property
    def program(self) -> Program:
        return self._setting.program

    def begin(self, data: Sequence[Value]) -> None:
        """Take the inputs of a step's microbatches, and forget what a failed one has left."""
        batch = self._binder.batch
        batch.inputs, batch.losses, self.has_run = dict(enumerate(data)), {}, True
        self._binder.local.begin((), ())
        for stage in self._copies.values():
            stage.forget()

    def run(self, recording: Recording, tell: Callable[[Losses], None]) -> None:
        """Run the whole lane; `tell` hears the losses once they are known."""
        start, end, now = recording.start, recording.end, recording.now
        due = self._losses_due
        row = -1
        try:
            for row, step in self.steps:
                step.receive()
                start[row] = now()
                step.run()
                end[row] = now()
                step.send()
                if due and len(self.losses) == due and not self._is_late:
                    due = 0
                    tell(self.losses)
        except WeftError:
            raise
        except Exception as error:
            raise blamed(self.program, row, error) from error
        if due:
            tell(self.losses)

    @property
    def _is_late(self) -> bool:
        """Whether looking at a loss would wait for a device's queue."""
        return any(isinstance(loss, Tensor) for loss in self.losses.values())

    def run_ready(self, recording: Recording, position: int, waiting: Loopback) -> int:
        """Run from a position on until a step has to wait; where that is."""
        start, end, now = recording.start, recording.end, recording.now
        for place in range(position, len(self.steps)):
            if not all(waiting.has(route.message) for route in self._needs[place]):
                return place
            row, step = self.steps[place]
            step.receive()
            try:
                start[row] = now()
                step.run()
                end[row] = now()
            except WeftError:
                raise
            except Exception as error:
                raise blamed(self.program, row, error) from error
            step.send()
        return len(self.steps)

    def _lane(self) -> Iterator[tuple[int, Action]]:
        program = self._setting.program
        index = program.lanes.index(Lane(self._device))
        first = int(program.bounds[index])
        for row, action in enumerate(program.lane(index)):
            yield first + row, action


def blamed(program: Program, row: int, error: Exception) -> WeftError:
    """What went wrong in the user's code, and where."""
    return WeftError(f"device {program.device_of[row]} failed at {token(program, row)}: {error}")
