"""Binding: actions compiled once into steps that know where values come from and go to.

Knows actions, edges and messages; knows no schedule by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from weft.errors import InputError
from weft.ir.actions import Action
from weft.ir.kinds import Direction, Kind
from weft.ir.program import Program
from weft.runtime.lane import steps
from weft.runtime.stage.shapes import StageForms
from weft.runtime.stage.stage import Stage
from weft.runtime.stage.values import Value
from weft.runtime.transport import Transport
from weft.runtime.transport.loopback import Loopback
from weft.runtime.transport.message import Message, Receive, Route, Send, Values

Forward: TypeAlias = Callable[..., Value]  # of a stage, a microbatch and its inputs
Copies: TypeAlias = Mapping[tuple[int, int], Stage]  # by (pipe, stage)
Place: TypeAlias = tuple[int, int, int]  # pipe, stage, microbatch


class Setting:
    """What all executors of a process share."""

    def __init__(
        self,
        program: Program,
        transport: Transport,
        forms: StageForms,
        forward: Forward = Stage.forward,
    ) -> None:
        self.program, self.transport, self.forms, self.forward = program, transport, forms, forward
        self._made_by = _producers(program)

    def holder(self, stage: int, microbatch: int) -> int:
        """The device that runs a stage for a microbatch."""
        pipe = self.program.pipe_of[microbatch % self.program.microbatches]
        return int(self.program.placement.table[pipe, stage])

    def route(self, message: Message) -> Route:
        """Where a message comes from and goes to."""
        ends = self.program.graph.edges[message.edge]
        if message.direction is Direction.GRADIENT:
            ends = ends[::-1]
        source, destination = (self.holder(stage, message.microbatch) for stage in ends)
        row = self._made_by[message.direction, ends[0], message.microbatch]
        kind = Kind(int(self.program.actions.kind[row])).name
        return Route(message, source, destination, f"{ends[0]}{kind}{message.microbatch}", row)


class Binder:
    """Makes the steps of one device, and knows which messages they wait for and send.

    The number of a microbatch is its name in messages; numbers may come again once their
    microbatch is over.
    """

    def __init__(self, setting: Setting, device: int, copies: Copies) -> None:
        self._setting, self._device, self._copies = setting, device, copies
        self.local = Loopback()
        self.batch = steps.Batch()
        self.forwards: dict[Place, steps.Forward] = {}
        self.incoming: list[Route] = []
        self.outgoing: list[Route] = []
        self._divided = _covered(setting.program, Kind.I)
        self._recomputed = _covered(setting.program, Kind.R)

    def step(self, action: Action) -> steps.Step:
        """An action bound to what it reads and writes."""
        makers: dict[Kind, Callable[[Action, int], steps.Step]] = {
            Kind.F: self._forward,
            Kind.B: self._backward,
            Kind.I: self._backward,
            Kind.W: self._weight_grad,
            Kind.R: self._recompute,
        }
        if action.kind not in makers or action.microbatch is None or action.segment is not None:
            raise InputError(f"the runtime does not run {action.kind.name} of {action.stage} yet")
        parts = [
            makers[action.kind](action, microbatch)
            for microbatch in range(action.microbatch, action.microbatch + action.span)
        ]
        return parts[0] if len(parts) == 1 else steps.Several(parts)

    def _forward(self, action: Action, microbatch: int) -> steps.Step:
        stage, graph = action.stage, self._setting.program.graph
        takes, puts = self._ends(Direction.ACTIVATION, stage, microbatch)
        step = steps.Forward(
            microbatch,
            self._bound(self._copies[action.pipe, stage], stage, microbatch),
            takes,
            puts,
            self.batch,
            not graph.predecessors[stage],
            not graph.successors[stage],
        )
        self.forwards[action.pipe, stage, microbatch] = step
        return step

    def _bound(self, copy: Stage, stage: int, microbatch: int) -> Callable[..., Value]:
        """A stage's forward of a microbatch, as its backward will need it."""
        run, place = partial(self._setting.forward, copy), (stage, microbatch)
        if self._setting.forward is not Stage.forward:
            return run
        if place in self._divided:
            run = partial(run, is_divided=True)
        return partial(run, is_recomputed=True) if place in self._recomputed else run

    def _backward(self, action: Action, microbatch: int) -> steps.Step:
        takes, puts = self._ends(Direction.GRADIENT, action.stage, microbatch)
        copy = self._copies[action.pipe, action.stage]
        run = copy.backward if action.kind is Kind.B else copy.input_grad
        forward = self.forwards[action.pipe, action.stage, microbatch]
        return steps.Backward(forward, run, takes, puts)

    def _weight_grad(self, action: Action, microbatch: int) -> steps.Step:
        return steps.Plain(self._copies[action.pipe, action.stage].weight_grad, microbatch)

    def _recompute(self, action: Action, microbatch: int) -> steps.Step:
        return steps.Plain(self._copies[action.pipe, action.stage].recompute, microbatch)

    def _ends(
        self, direction: Direction, stage: int, microbatch: int
    ) -> tuple[list[Receive], list[Send]]:
        """Calls that get what a stage reads and hand on what it writes, edge by edge."""
        takes, puts = [], []
        graph = self._setting.program.graph
        for edge, ends in sorted(enumerate(graph.edges), key=lambda one: one[1]):
            source, destination = ends if direction is Direction.ACTIVATION else ends[::-1]
            message = Message(edge, direction, microbatch)
            if destination == stage:
                takes.append(self._take(message))
            if source == stage:
                is_read = direction is Direction.ACTIVATION or graph.stages[destination].is_learning
                puts.append(self._put(message) if is_read else _drop)
        return takes, puts

    def _take(self, message: Message) -> Receive:
        route, forms = self._setting.route(message), self._setting.forms.of(message)
        if route.source == self._device:
            return self.local.receiver(route, forms)
        self.incoming.append(route)
        return self._setting.transport.receiver(route, forms)

    def _put(self, message: Message) -> Send:
        route, forms = self._setting.route(message), self._setting.forms.of(message)
        if route.destination == self._device:
            return self.local.sender(route, forms)
        self.outgoing.append(route)
        return self._setting.transport.sender(route, forms)


def _drop(values: Values) -> None:
    """The gradient of what does not learn, which nobody reads."""


def _covered(program: Program, kind: Kind) -> set[tuple[int, int]]:
    """The stages and microbatches that have an action of a kind: I where a backward is divided."""
    return {
        (action.stage, microbatch)
        for action in program.actions
        if action.kind is kind and action.microbatch is not None
        for microbatch in range(action.microbatch, action.microbatch + action.span)
    }


def _producers(program: Program) -> dict[tuple[Direction, int, int], int]:
    """The row of the action that computes each stage's activation or gradient."""
    made: dict[tuple[Direction, int, int], int] = {}
    makes = {Kind.F: Direction.ACTIVATION, Kind.B: Direction.GRADIENT, Kind.I: Direction.GRADIENT}
    for row, action in enumerate(program.actions):
        if action.kind in makes and action.microbatch is not None:
            for microbatch in range(action.microbatch, action.microbatch + action.span):
                made[makes[action.kind], action.stage, microbatch] = row
    return made
