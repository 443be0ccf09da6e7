"""The executor: a device's lane of actions, compiled once into bound calls.

Knows actions, edges and messages; knows no schedule by name. Local values pass through a table,
foreign ones through the transport.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from torch import Tensor

from weft.errors import InputError
from weft.ir.actions import Action
from weft.ir.kinds import Direction, Kind
from weft.ir.lanes import Lane
from weft.ir.program import Program
from weft.runtime.stage import Gradients, Stage
from weft.runtime.transport import Message, Transport

Forward: TypeAlias = Callable[[Stage, int, Sequence[Tensor]], Sequence[Tensor]]
Copies: TypeAlias = Mapping[tuple[int, int], Stage]  # by (pipe, stage)


@dataclass(frozen=True, slots=True)
class Step:
    """One action of one device: what it waits for, and what it does."""

    row: int  # of the program
    needs: tuple[Message, ...]
    run: Callable[[], None]


class Executor:
    """Runs the compute lane of one device."""

    def __init__(
        self,
        program: Program,
        device: int,
        copies: Copies,
        transport: Transport,
        forward: Forward = Stage.forward,
    ) -> None:
        self._run_forward = forward
        self._program = program
        self._device = device
        self._copies = copies
        self._transport = transport
        self._local: dict[Message, Gradients] = {}
        self._outbox: list[tuple[Message, int, Gradients]] = []
        self._widths: dict[Message, int] = {}  # values that arrived with an activation
        self._data: Sequence[tuple[Tensor, ...]] = ()
        self.losses: dict[int, Tensor] = {}
        self.steps = tuple(self._compiled())

    def begin(self, data: Sequence[tuple[Tensor, ...]]) -> None:
        """Take the inputs of a step's microbatches."""
        self._data = data
        self.losses = {}

    def end(self) -> None:
        """Forget what a step has left, whether it ended or not."""
        self._local.clear()
        self._outbox.clear()
        self._widths.clear()
        for stage in self._copies.values():
            stage.forget()

    def is_ready(self, step: Step) -> bool:
        """Whether a step can run without waiting."""
        return all(self._transport.has(message) for message in step.needs)

    def fetch(self, step: Step) -> None:
        """Wait for what a step reads from other devices."""
        for message in step.needs:
            self._local[message] = self._transport.receive(message, self.source_of(message))

    def deliver(self) -> None:
        """Send what the last step computed for other devices."""
        for message, destination, values in self._outbox:
            self._transport.send(message, destination, values)
        self._outbox.clear()

    def source_of(self, message: Message) -> int:
        """The device that sends a message."""
        ends = self._program.graph.edges[message.edge]
        is_forward = message.direction is Direction.ACTIVATION
        return self._holder(ends[0] if is_forward else ends[1], message.microbatch)

    # compiling

    def _compiled(self) -> list[Step]:
        index = self._program.lanes.index(Lane(self._device))
        first = int(self._program.bounds[index])
        return [
            self._step(first + row, action) for row, action in enumerate(self._program.lane(index))
        ]

    def _step(self, row: int, action: Action) -> Step:
        handlers = {
            Kind.F: self._forward,
            Kind.B: self._backward,
            Kind.I: self._backward,
            Kind.W: self._weight_grad,
            Kind.R: self._recompute,
        }
        if action.kind not in handlers or action.microbatch is None:
            raise InputError(f"the runtime does not run {action.kind.name} yet")
        parts = [
            partial(handlers[action.kind], action._replace(microbatch=microbatch, span=1))
            for microbatch in range(action.microbatch, action.microbatch + action.span)
        ]
        needs = tuple(message for part in parts for message in self._needs(part.args[0]))
        return Step(row, needs, parts[0] if len(parts) == 1 else partial(_each, parts))

    def _needs(self, action: Action) -> list[Message]:
        """Messages from other devices that an action reads."""
        stage, microbatch = action.stage, action.microbatch or 0
        found = []
        for edge, (source, destination) in enumerate(self._program.graph.edges):
            if action.kind is Kind.F and destination == stage:
                found.append((source, Message(edge, Direction.ACTIVATION, microbatch)))
            if action.kind in (Kind.B, Kind.I) and source == stage:
                found.append((destination, Message(edge, Direction.GRADIENT, microbatch)))
        return [
            message for other, message in found if self._holder(other, microbatch) != self._device
        ]

    def _holder(self, stage: int, microbatch: int) -> int:
        pipe = self._program.pipe_of[microbatch % self._program.microbatches]
        return int(self._program.placement.table[pipe, stage])

    # running

    def _forward(self, action: Action) -> None:
        graph, microbatch = self._program.graph, action.microbatch or 0
        is_first = not graph.predecessors[action.stage]
        inputs: list[Tensor] = list(self._data[microbatch]) if is_first else []
        for edge, (_, destination) in enumerate(graph.edges):
            if destination == action.stage:
                message = Message(edge, Direction.ACTIVATION, microbatch)
                arrived = [value for value in self._local.pop(message) if value is not None]
                self._widths[message] = len(arrived)
                inputs += arrived
        stage = self._copies[action.pipe, action.stage]
        outputs = self._run_forward(stage, microbatch, inputs)
        if not graph.successors[action.stage]:
            self.losses[microbatch] = outputs[0]
        for edge, (source, destination) in enumerate(graph.edges):
            if source == action.stage:
                self._give(Message(edge, Direction.ACTIVATION, microbatch), destination, outputs)

    def _backward(self, action: Action) -> None:
        graph, microbatch = self._program.graph, action.microbatch or 0
        arrived = [
            self._local.pop(Message(edge, Direction.GRADIENT, microbatch))
            for edge, (source, destination) in enumerate(graph.edges)
            if source == action.stage
        ]
        gradients = _summed(arrived) if arrived else (None,)
        stage = self._copies[action.pipe, action.stage]
        run = stage.backward if action.kind is Kind.B else stage.input_grad
        passed = iter(run(microbatch, gradients))
        for edge, (source, destination) in enumerate(graph.edges):
            if destination == action.stage:
                width = self._widths.pop(Message(edge, Direction.ACTIVATION, microbatch))
                values = [next(passed) for _ in range(width)]
                self._give(Message(edge, Direction.GRADIENT, microbatch), source, values)

    def _weight_grad(self, action: Action) -> None:
        self._copies[action.pipe, action.stage].weight_grad(action.microbatch or 0)

    def _recompute(self, action: Action) -> None:
        self._copies[action.pipe, action.stage].recompute(action.microbatch or 0)

    def _give(self, message: Message, stage: int, values: Gradients) -> None:
        destination = self._holder(stage, message.microbatch)
        if destination == self._device:
            self._local[message] = values
        else:
            self._outbox.append((message, destination, values))


def _each(parts: Sequence[Callable[[], None]]) -> None:
    for part in parts:
        part()


def _summed(arrived: Sequence[Gradients]) -> Gradients:
    """The gradient of a value that several stages read, summed in the order of the edges."""
    total = list(arrived[0])
    for others in arrived[1:]:
        for index, other in enumerate(others):
            mine = total[index]
            total[index] = other if mine is None else mine if other is None else mine + other
    return total
