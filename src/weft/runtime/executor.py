"""The executor: a device's lane of actions, compiled once into bound calls.

    receive   wait for what other devices send
    run       the action itself: what is timed
    send      hand on what it computed

Knows actions, edges and messages; knows no schedule by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

from torch import Tensor

from weft.errors import InputError, WeftError
from weft.ir.actions import Action
from weft.ir.kinds import Direction, Kind
from weft.ir.lanes import Lane
from weft.ir.program import Program
from weft.notation import token
from weft.runtime.clock import Recording
from weft.runtime.forms import StageForms
from weft.runtime.message import Message, Receive, Route, Send, Values
from weft.runtime.stage import Stage
from weft.runtime.transport import Transport
from weft.runtime.transport.loopback import Loopback

Forward: TypeAlias = Callable[[Stage, int, Sequence[Tensor]], Sequence[Tensor]]
Copies: TypeAlias = Mapping[tuple[int, int], Stage]  # by (pipe, stage)
Place: TypeAlias = tuple[int, int, int]  # pipe, stage, microbatch


class Step(Protocol):
    """One action, bound to what it reads and writes."""

    def receive(self) -> None: ...

    def run(self) -> None: ...

    def send(self) -> None: ...


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


class Executor:
    """Runs the compute lane of one device."""

    def __init__(self, setting: Setting, device: int, copies: Copies) -> None:
        self._setting, self._device, self._copies = setting, device, copies
        self._local = Loopback()
        self._forwards: dict[Place, _Forward] = {}
        self.data: Sequence[Sequence[Tensor]] = ()
        self.losses: dict[int, Tensor] = {}
        self.has_run = False
        self.incoming: list[Route] = []
        self.outgoing: list[Route] = []
        self._needs: list[list[Route]] = []
        self.steps: list[tuple[int, Step]] = []
        for row, action in self._lane():
            before = len(self.incoming)
            self.steps.append((row, self._step(action)))
            self._needs.append(self.incoming[before:])
        graph = setting.program.graph
        self._losses_due = sum(not graph.successors[stage] for _, stage, _ in self._forwards)

    @property
    def program(self) -> Program:
        return self._setting.program

    def begin(self, data: Sequence[Sequence[Tensor]]) -> None:
        """Take the inputs of a step's microbatches, and forget what a failed one has left."""
        self.data, self.has_run = data, True
        self.losses = {}
        self._local.begin((), ())
        for stage in self._copies.values():
            stage.forget()

    def run(self, recording: Recording, tell: Callable[[dict[int, Tensor]], None]) -> None:
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
            raise self._blamed(row, error) from error
        if due:
            tell(self.losses)

    @property
    def _is_late(self) -> bool:
        """Whether looking at a loss would wait for a device's queue."""
        return any(loss.is_cuda for loss in self.losses.values())

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
                raise self._blamed(row, error) from error
            step.send()
        return len(self.steps)

    def _blamed(self, row: int, error: Exception) -> WeftError:
        """What went wrong in the user's code, and where."""
        return WeftError(
            f"device {self._device} failed at {token(self._setting.program, row)}: {error}"
        )

    # compiling

    def _lane(self) -> Iterator[tuple[int, Action]]:
        program = self._setting.program
        index = program.lanes.index(Lane(self._device))
        first = int(program.bounds[index])
        for row, action in enumerate(program.lane(index)):
            yield first + row, action

    def _step(self, action: Action) -> Step:
        makers: dict[Kind, Callable[[Action, int], Step]] = {
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
        return parts[0] if len(parts) == 1 else _Several(parts)

    def _forward(self, action: Action, microbatch: int) -> Step:
        stage, graph = action.stage, self._setting.program.graph
        takes, puts = self._ends(Direction.ACTIVATION, stage, microbatch)
        step = _Forward(
            microbatch,
            partial(self._setting.forward, self._copies[action.pipe, stage]),
            takes,
            puts,
            data=None if graph.predecessors[stage] else self,
            losses=None if graph.successors[stage] else self,
        )
        self._forwards[action.pipe, stage, microbatch] = step
        return step

    def _backward(self, action: Action, microbatch: int) -> Step:
        takes, puts = self._ends(Direction.GRADIENT, action.stage, microbatch)
        copy = self._copies[action.pipe, action.stage]
        run = copy.backward if action.kind is Kind.B else copy.input_grad
        forward = self._forwards[action.pipe, action.stage, microbatch]
        return _Backward(forward, run, takes, puts)

    def _weight_grad(self, action: Action, microbatch: int) -> Step:
        return _Plain(self._copies[action.pipe, action.stage].weight_grad, microbatch)

    def _recompute(self, action: Action, microbatch: int) -> Step:
        return _Plain(self._copies[action.pipe, action.stage].recompute, microbatch)

    def _ends(
        self, direction: Direction, stage: int, microbatch: int
    ) -> tuple[list[Receive], list[Send]]:
        """Calls that get what a stage reads and hand on what it writes, edge by edge."""
        takes, puts = [], []
        for edge, ends in enumerate(self._setting.program.graph.edges):
            source, destination = ends if direction is Direction.ACTIVATION else ends[::-1]
            message = Message(edge, direction, microbatch)
            if destination == stage:
                takes.append(self._take(message))
            if source == stage:
                puts.append(self._put(message))
        return takes, puts

    def _take(self, message: Message) -> Receive:
        route, forms = self._setting.route(message), self._setting.forms.of(message)
        if route.source == self._device:
            return self._local.receiver(route, forms)
        self.incoming.append(route)
        return self._setting.transport.receiver(route, forms)

    def _put(self, message: Message) -> Send:
        route, forms = self._setting.route(message), self._setting.forms.of(message)
        if route.destination == self._device:
            return self._local.sender(route, forms)
        self.outgoing.append(route)
        return self._setting.transport.sender(route, forms)


@dataclass(slots=True, eq=False)
class _Forward:
    """F: values and data in, values or the loss out."""

    _microbatch: int
    _run: Callable[[int, Sequence[Tensor]], Sequence[Tensor]]
    _takes: Sequence[Receive]
    _puts: Sequence[Send]
    data: Executor | None  # where a first stage finds its inputs
    losses: Executor | None  # where a last stage puts its loss
    widths: Sequence[int] = ()  # values that came along each edge
    _inputs: Sequence[Tensor] = ()
    _outputs: Sequence[Tensor] = ()

    def receive(self) -> None:
        inputs = list(self.data.data[self._microbatch]) if self.data else []
        widths = []
        for take in self._takes:
            arrived = [value for value in take() if value is not None]
            widths.append(len(arrived))
            inputs += arrived
        self._inputs, self.widths = inputs, widths

    def run(self) -> None:
        self._outputs = self._run(self._microbatch, self._inputs)
        self._inputs = ()

    def send(self) -> None:
        outputs, self._outputs = self._outputs, ()
        if self.losses:
            self.losses.losses[self._microbatch] = outputs[0]
        for put in self._puts:
            put(outputs)


@dataclass(slots=True, eq=False)
class _Backward:
    """B or I: gradients in, summed over the edges; gradients out, each to its edge."""

    _forward: _Forward
    _run: Callable[[int, Values], Values]
    _takes: Sequence[Receive]
    _puts: Sequence[Send]
    _gradients: Values = (None,)
    _passed: Values = ()

    def receive(self) -> None:
        if self._takes:
            self._gradients = _summed([take() for take in self._takes])

    def run(self) -> None:
        self._passed = self._run(self._forward._microbatch, self._gradients)
        self._gradients = (None,)

    def send(self) -> None:
        passed, self._passed = self._passed, ()
        first = 0
        for put, width in zip(self._puts, self._forward.widths, strict=True):
            put(passed[first : first + width])
            first += width


@dataclass(slots=True, eq=False)
class _Plain:
    """W or R: nothing comes and nothing goes."""

    _run: Callable[[int], None]
    _microbatch: int

    def receive(self) -> None:
        """Reads what its own stage has saved."""

    def run(self) -> None:
        self._run(self._microbatch)

    def send(self) -> None:
        """Writes to its own stage."""


@dataclass(slots=True, eq=False)
class _Several:
    """An action that spans microbatches: one after the other."""

    _parts: Sequence[Step]

    def receive(self) -> None:
        for part in self._parts:
            part.receive()

    def run(self) -> None:
        for part in self._parts:
            part.run()

    def send(self) -> None:
        for part in self._parts:
            part.send()


def _summed(arrived: Sequence[Values]) -> Values:
    """The gradient of a value that several stages read, summed in the order of the edges."""
    if len(arrived) == 1:
        return arrived[0]
    total = list(arrived[0])
    for others in arrived[1:]:
        for index, other in enumerate(others):
            mine = total[index]
            total[index] = other if mine is None else mine if other is None else mine + other
    return total


def _producers(program: Program) -> dict[tuple[Direction, int, int], int]:
    """The row of the action that computes each stage's activation or gradient."""
    made: dict[tuple[Direction, int, int], int] = {}
    makes = {Kind.F: Direction.ACTIVATION, Kind.B: Direction.GRADIENT, Kind.I: Direction.GRADIENT}
    for row, action in enumerate(program.actions):
        if action.kind in makes and action.microbatch is not None:
            for microbatch in range(action.microbatch, action.microbatch + action.span):
                made[makes[action.kind], action.stage, microbatch] = row
    return made
