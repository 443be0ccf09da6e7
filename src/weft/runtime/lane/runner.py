"""The runner: a device's lane without end, as far as the data reach.

Steps are compiled once, for as many numbers as microbatches in flight need; a number comes again
once its microbatch is over. Knows steps, versions and parts; knows no schedule by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from weft.errors import WeftError
from weft.ir.actions import Action
from weft.ir.kinds import Direction, Kind
from weft.ir.program import Program
from weft.runtime.lane import steps
from weft.runtime.lane.bind import Binder, Copies, Setting
from weft.runtime.lane.executor import blamed
from weft.runtime.lane.flow import Item
from weft.runtime.ranks.clock import Recording
from weft.runtime.transport.loopback import Loopback
from weft.runtime.transport.message import Route
from weft.runtime.weights.groups import Part
from weft.runtime.weights.policy import Rules

Place: TypeAlias = tuple[Kind, int, int]  # kind, stage, number of the microbatch
VersionsOf: TypeAlias = Callable[[int, int], tuple[int, ...]]  # of a stage and a microbatch


class Runner:
    """Runs the lane of one device.

    program   the flow; what goes wrong is told by its actions
    setting   of the program that has each number once
    parts     what is updated, by stage
    versions  what each part of a stage uses for a microbatch
    on_loss   hears each loss of the last stage, with the microbatch
    """

    def __init__(
        self,
        program: Program,
        setting: Setting,
        device: int,
        copies: Copies,
        parts: Mapping[int, Sequence[Part]],
        rules: Rules,
        *,
        versions: VersionsOf,
        on_loss: Callable[[int, steps.Loss], None],
    ) -> None:
        self._program, self.device, self._parts, self._versions = program, device, parts, versions
        self._copies = {stage: copy for (_, stage), copy in copies.items()}
        self._numbers = setting.program.microbatches * setting.program.steps
        self._rules, self._on_loss = rules, on_loss
        self._binder = Binder(setting, device, copies)
        self._needs: dict[Place, list[Route]] = {}
        self._steps: dict[Place, steps.Step] = {}
        kinds = {Kind(int(kind)) for kind in program.actions.kind.tolist()}
        for kind in (kind for kind in (Kind.F, Kind.R, Kind.B) if kind in kinds):
            for stage in self._copies:
                for number in range(self._numbers):
                    self._bind(kind, stage, number)
        self._last = [stage for stage in self._copies if not program.graph.successors[stage]]
        self._arriving = _by_sender(program, self._binder.incoming)
        self._leaving = _by_sender(program, self._binder.outgoing)

    def _bind(self, kind: Kind, stage: int, number: int) -> None:
        before = len(self._binder.incoming)
        self._steps[kind, stage, number] = self._binder.step(Action(stage, kind, number))
        self._needs[kind, stage, number] = self._binder.incoming[before:]

    @property
    def batch(self) -> steps.Batch:
        return self._binder.batch

    def messages(self, items: Mapping[int, Sequence[Item]]) -> tuple[list[Route], list[Route]]:
        """What arrives here and what leaves while devices run these, in the senders' order."""
        arriving = [
            route
            for device in items
            if device != self.device
            for item in items[device]
            for route in self._arriving.get(self._place(item), ())
        ]
        leaving = [
            route
            for item in items[self.device]
            for route in self._leaving.get(self._place(item), ())
        ]
        return arriving, leaving

    def run(self, items: Sequence[Item], recording: Recording, recorded: int) -> None:
        """Run these, waiting for what they need; the first so many microbatches are recorded."""
        for item in items:
            self._run(item, recording, is_recorded=item.microbatch < recorded)

    def is_ready(self, item: Item, waiting: Loopback) -> bool:
        """Whether nothing would have to be waited for, where one process runs all devices."""
        if item.kind is Kind.UPDATE:
            return True
        if not all(waiting.has(route.message) for route in self._needs[self._place(item)]):
            return False
        return item.kind is not Kind.F or all(
            part.is_ready(version)
            for part, version in zip(
                self._parts[item.stage], self._versions(item.stage, item.microbatch), strict=True
            )
        )

    def _run(self, item: Item, recording: Recording, *, is_recorded: bool) -> None:
        try:
            if item.kind is Kind.UPDATE:
                update = self._rules.origin + item.version
                step: steps.Step = _Update(self._parts[item.stage], update)
            else:
                step = self._steps[self._place(item)]
                if item.kind is Kind.F:
                    self._settle(item)
            step.receive()
            start = recording.now()
            step.run()
            end = recording.now()
            step.send()
        except WeftError:
            raise
        except Exception as error:
            raise blamed(self._program, item.row, error) from error
        if is_recorded:
            recording.start.append(start)
            recording.end.append(end)
        if item.kind is Kind.F and item.stage in self._last:
            number = item.microbatch % self._numbers
            self._on_loss(item.microbatch, self.batch.losses.pop(number))

    def _place(self, item: Item) -> Place:
        return item.kind, item.stage, item.microbatch % self._numbers

    def _settle(self, item: Item) -> None:
        """Have the weights that a forward asks for."""
        parts, versions = self._parts[item.stage], self._versions(item.stage, item.microbatch)
        if any(p.stash.newest < version for p, version in zip(parts, versions, strict=True)):
            for part, version in zip(parts, versions, strict=True):
                part.announce(version)
            for part, version in zip(parts, versions, strict=True):
                part.settle(version)
        self._copies[item.stage].versions = versions


class _Update:
    """An update: the gradients of all parts of a stage are closed."""

    def __init__(self, parts: Sequence[Part], update: int) -> None:
        self._parts, self._update = parts, update

    def receive(self) -> None:
        """Reads what its own stage has summed up."""

    def run(self) -> None:
        for part in self._parts:
            part.close(self._update)

    def send(self) -> None:
        """Parts tell what they have to."""


def _by_sender(program: Program, routes: Sequence[Route]) -> dict[Place, list[Route]]:
    """Messages by the action that sends them."""
    found: dict[Place, list[Route]] = {}
    for route in routes:
        source, destination = program.graph.edges[route.message.edge]
        is_forward = route.message.direction is Direction.ACTIVATION
        place = (
            Kind.F if is_forward else Kind.B,
            source if is_forward else destination,
            route.message.microbatch,
        )
        found.setdefault(place, []).append(route)
    return found
