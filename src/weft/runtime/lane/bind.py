"""Binding: every action of a device becomes a step, once, by a table from kind to handler.

Sends, receives, sums and updates are wired as the program lists them. Knows actions and messages;
knows no schedule by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from weft.cost import Cost
from weft.errors import InputError
from weft.ir.actions import Action
from weft.ir.graph import Backward as Extent
from weft.ir.kinds import Direction, Kind
from weft.ir.program import Program
from weft.runtime.lane import steps
from weft.runtime.lane.ring import Ring
from weft.runtime.lane.whole import WholeBackward, WholeForward
from weft.runtime.lane.wires import DIRECTIONS, Wires, numbers_of
from weft.runtime.lent import LentValues
from weft.runtime.stage.shapes import StageShapes
from weft.runtime.stage.stage import Stage
from weft.runtime.stage.values import Value
from weft.runtime.transport import Transport
from weft.runtime.weights.weights import VersionsOf, Weights

Copies: TypeAlias = Mapping[tuple[int, int], Sequence[Stage]]  # segments, by (pipe, stage)


@dataclass(slots=True)
class Batch:
    """What microbatches begin and end with, by number."""

    read: set[int] = field(default_factory=set)  # by first stages here
    judged: set[int] = field(default_factory=set)  # by last stages here
    inputs: LentValues = field(default_factory=LentValues)
    on_loss: steps.OnLoss = lambda lap, number, loss: None
    is_read_once: bool = True  # there is one first stage

    def give(self, number: int, value: Value, *, is_lent: bool = False) -> None:
        """Let a microbatch begin with a value, if it begins here."""
        if number in self.read:
            self.inputs.give(number, value, is_lent=is_lent)

    def taken(self, number: int) -> Value:
        """The input of a microbatch, which nobody else keeps once its only reader has it."""
        value = self.inputs.read(number)
        if self.is_read_once:
            self.inputs.drop(number)
        return value


class Binder:
    """The steps of the devices of a process, by row of the ring's program.

    weights  what updates change; None where forwards alone are run, which keep nothing
    cost     by which transfers that take place at once are launched together
    """

    def __init__(
        self,
        ring: Ring,
        devices: range,
        copies: Copies,
        transport: Transport,
        shapes: StageShapes,
        weights: Weights | None,
        cost: Cost | None = None,
    ) -> None:
        self.ring, self.program, self.devices = ring, ring.program, devices
        self._copies, self._weights = copies, weights
        first = [one for one in self.program.graph.predecessors if not one]
        self.batch = Batch(is_read_once=len(first) == 1)
        segments = {place: len(found) for place, found in copies.items()}
        self.wires = Wires(ring, segments, transport, shapes, cost)
        self._forwards: dict[tuple[int, ...], steps.Forward] = {}
        self._wholes: dict[tuple[int, int], WholeForward] = {}
        self._divided, self._again, self._offloaded = (
            _covered(self.program, kind) for kind in (Kind.I, Kind.R, Kind.OFFLOAD)
        )
        self.steps: dict[int, steps.Step] = {}
        for row in sorted(self._rows(), key=self._after_what_it_names):
            self.steps[row] = self._step(row, self.program.actions[row])
        self.closings = dict(self._closings()) if weights is not None else {}

    def _step(self, row: int, action: Action) -> steps.Step:
        if action.kind not in HANDLERS:
            raise InputError(f"nothing runs {action.kind.name}, which {self.program.name} has")
        return HANDLERS[action.kind](self, row, action)

    def forget(self) -> None:
        """Drop what a run that failed has left."""
        self.wires.forget()
        for segments in self._copies.values():
            for stage in segments:
                stage.forget()

    def _rows(self) -> list[int]:
        return np.flatnonzero(np.isin(self.program.device_of, self.devices)).tolist()

    def _after_what_it_names(self, row: int) -> tuple[int, int]:
        """Messages first, then forwards: what other steps are wired to."""
        kind = int(self.program.actions.kind[row])
        return (0 if kind in DIRECTIONS else 1 if kind == Kind.F else 2), row

    def send(self, row: int, action: Action) -> steps.Step:
        return self.wires.send(row, action)

    def receive(self, row: int, action: Action) -> steps.Step:
        return self.wires.receive(row, action)

    def forward(self, row: int, action: Action) -> steps.Step:
        if not self._is_whole(action):
            return self._each(action, partial(self._forward, action))
        parts = [self._forward(action, number) for number in numbers_of(action)]
        made = self._wholes[action.pipe, action.stage] = WholeForward(action.stage, parts)
        return made

    def _is_whole(self, action: Action) -> bool:
        return self.program.graph.stages[action.stage].is_whole_batch

    def _forward(self, action: Action, number: int) -> steps.Forward:
        graph, segments = self.program.graph, self._copies[action.pipe, action.stage]
        segment = self.wires.place(action)
        is_first = not graph.predecessors[action.stage] and segment == 0
        is_last = not graph.successors[action.stage] and segment == len(segments) - 1
        for numbers, is_here in ((self.batch.read, is_first), (self.batch.judged, is_last)):
            if is_here:
                numbers.add(number)
        made = steps.Forward(
            number,
            self._call(segments[segment], action, number),
            [] if is_first else self.wires.takes(Direction.ACTIVATION, action, number),
            [] if is_last else self.wires.puts(Direction.ACTIVATION, action, number),
            self.batch.taken if is_first else None,
            self._on_loss if is_last else None,
            self._versions_of(action, number),
            None if is_last else self.wires.carried(action, number),
        )
        self._forwards[action.pipe, action.stage, segment, number] = made
        return made

    def _versions_of(self, action: Action, number: int) -> VersionsOf | None:
        if self._weights is None:
            return None
        return self._weights.versions_of(action.pipe, action.stage, number)

    def _on_loss(self, lap: int, number: int, loss: steps.Loss) -> None:
        self.batch.on_loss(lap, number, loss)

    def _call(self, stage: Stage, action: Action, number: int) -> Callable[..., Value]:
        """A stage's forward of a microbatch, as its backward will need it."""
        if self._weights is None:
            return stage.infer
        ways = {
            "is_divided": self._divided,
            "is_recomputed": self._again,
            "is_offloaded": self._offloaded,
        }
        own = {(action.stage, number, None), (action.stage, number, action.segment)}
        flags: dict[str, Any] = {name: True for name, found in ways.items() if own & found}
        return partial(stage.forward, **flags) if flags else stage.forward

    def backward(self, row: int, action: Action) -> steps.Step:
        if not self._is_whole(action):
            return self._each(action, partial(self._backward, action))
        stage = self._copies[action.pipe, action.stage][0]
        is_first = not self.program.graph.predecessors[action.stage]
        back = Direction.GRADIENT
        return WholeBackward(
            self._wholes[action.pipe, action.stage],
            stage.backward if action.kind is Kind.B else stage.input_grad,
            [self.wires.takes(back, action, number) for number in numbers_of(action)],
            [
                [] if is_first else self.wires.puts(back, action, number)
                for number in numbers_of(action)
            ],
        )

    def _backward(self, action: Action, number: int) -> steps.Step:
        segment = self.wires.place(action)
        stage = self._copies[action.pipe, action.stage][segment]
        forward = self._forwards[action.pipe, action.stage, segment, number]
        is_first = not self.program.graph.predecessors[action.stage] and segment == 0
        return steps.Backward(
            forward,
            stage.backward if action.kind is Kind.B else stage.input_grad,
            self.wires.takes(Direction.GRADIENT, action, number),
            [] if is_first else self.wires.puts(Direction.GRADIENT, action, number),
        )

    def plain(self, row: int, action: Action) -> steps.Step:
        """What a stage, or a segment of it, does by itself."""
        calls = [getattr(stage, CALLS[action.kind]) for stage in self._chosen(action)]
        return self._each(action, lambda number: steps.Plain(calls, number))

    def _chosen(self, action: Action) -> Sequence[Stage]:
        """The segment that an action names, or all of its stage."""
        segments = self._copies[action.pipe, action.stage]
        return segments if action.segment is None else [segments[self.wires.place(action)]]

    def offload(self, row: int, action: Action) -> steps.Step:
        numbers = numbers_of(action)[:1] if self._is_whole(action) else numbers_of(action)
        return steps.Offload(self._chosen(action), numbers)

    def _each(self, action: Action, make: Callable[[int], steps.Step]) -> steps.Step:
        numbers = numbers_of(action)
        parts = [make(number) for number in (numbers[:1] if self._is_whole(action) else numbers)]
        return parts[0] if len(parts) == 1 else steps.Several(parts)

    # weights

    def reduce(self, row: int, action: Action) -> steps.Step:
        weights, update = self._of_update(action)
        exchanges = weights.exchanges(action.pipe, action.stage, action.edge)
        return steps.Reduce(weights.policy, update, self.ring.updates, exchanges)

    def gather(self, row: int, action: Action) -> steps.Step:
        weights, update = self._of_update(action)
        gather = weights.gather(action.stage, action.edge)
        return steps.GatherWeights(weights.policy, update, self.ring.updates, gather)

    def update(self, row: int, action: Action) -> steps.Step:
        weights, update = self._of_update(action)
        group = weights.group(action.pipe, action.stage, action.edge)
        return steps.Update(weights.policy, update, self.ring.updates, group)

    def _of_update(self, action: Action) -> tuple[Weights, int]:
        assert self._weights is not None
        return self._weights, action.version or 0

    def _closings(self) -> Iterator[tuple[int, steps.Closing]]:
        """After the last weight gradient of an update of each stage: it is closed."""
        assert self._weights is not None
        actions, step = self.program.actions, self.program.microbatches
        is_end = np.isin(actions.kind, (Kind.B, Kind.W)) & np.isin(
            self.program.device_of, self.devices
        )
        last: dict[tuple[int, int, int], int] = {}
        for row in np.flatnonzero(is_end).tolist():
            if self.program.is_on_compute[self.program.lane_of[row]]:
                update = int(actions.microbatch[row]) // step
                last[int(actions.pipe[row]), int(actions.stage[row]), update] = row
        for (pipe, stage, update), row in last.items():
            if self.program.graph.stages[stage].backward is Extent.FULL:
                groups = self._weights.groups[pipe, stage]
                yield row, steps.Closing(self._weights.policy, update, self.ring.updates, groups)


Handler: TypeAlias = Callable[[Binder, int, Action], steps.Step]

# What runs each kind of action: a kind without a row here is refused before anything runs.
HANDLERS: dict[Kind, Handler] = {
    Kind.F: Binder.forward,
    Kind.B: Binder.backward,
    Kind.I: Binder.backward,
    Kind.W: Binder.plain,
    Kind.R: Binder.plain,
    Kind.SEND_ACTIVATION: Binder.send,
    Kind.RECV_ACTIVATION: Binder.receive,
    Kind.SEND_GRADIENT: Binder.send,
    Kind.RECV_GRADIENT: Binder.receive,
    Kind.OFFLOAD: Binder.offload,
    Kind.ONLOAD: Binder.plain,
    Kind.REDUCE: Binder.reduce,
    Kind.UPDATE: Binder.update,
    Kind.GATHER: Binder.gather,
}

# What a stage is asked to do with a microbatch, where nothing passes in or out.
CALLS = {
    Kind.W: "weight_grad",
    Kind.R: "recompute",
    Kind.ONLOAD: "onload",
}


def _covered(program: Program, kind: Kind) -> set[tuple[int, int, int | None]]:
    """The stages, microbatches and segments (None: all) that have an action of a kind."""
    rows = np.flatnonzero(program.actions.kind == kind).tolist()
    found = (program.actions[row] for row in rows)
    return {(one.stage, number, one.segment) for one in found for number in numbers_of(one)}
