"""Wires: the ends of messages, as the program lists its sends and receives.

What an action hands to another device goes to the step of its send; what it gets from one is taken
from the transport. What stays on the device, also from one segment of a stage to the next, is a
place in a table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from weft.cost import Cost, evened
from weft.ir.actions import Action, Actions
from weft.ir.kinds import Direction, Kind
from weft.ir.program import Program
from weft.ir.values import Value
from weft.lower import groups_of, launched_after
from weft.lower.meetings import singly
from weft.runtime.lane import steps
from weft.runtime.lane.carried import Carried
from weft.runtime.lane.ring import Ring
from weft.runtime.stage.shapes import StageShapes
from weft.runtime.transport import OrderedTransport, Transport
from weft.runtime.transport.loopback import Loopback
from weft.runtime.transport.message import Message, Receive, Route, Send, Shapes, Values

Segments: TypeAlias = Mapping[tuple[int, int], int]  # how many, by (pipe, stage)

DIRECTIONS = {
    Kind.SEND_ACTIVATION: Direction.ACTIVATION,
    Kind.RECV_ACTIVATION: Direction.ACTIVATION,
    Kind.SEND_GRADIENT: Direction.GRADIENT,
    Kind.RECV_GRADIENT: Direction.GRADIENT,
}


RECEIVES = (Kind.RECV_ACTIVATION, Kind.RECV_GRADIENT)


class Wires:
    """The messages of the devices of a process, with what sends and receives them."""

    def __init__(
        self,
        ring: Ring,
        segments: Segments,
        transport: Transport,
        shapes: StageShapes,
        cost: Cost | None = None,
    ) -> None:
        self._carries = shapes.carries
        self._program, self._segments = ring.program, segments
        self._places = _places(ring.program.actions)
        self._transport, self._shapes = transport, shapes
        self._local = Loopback(is_crossing=max(segments.values(), default=1) > 1)
        groups = groups_in(ring, cost)
        self.ends = ends_of_groups(ring.program, groups)  # with what each transfer is launched
        after = {} if ring.is_periodic else launched_after(ring.program, groups, evened(cost))
        self.after = after  # what each group is launched after, by its last transfer
        self.sends: dict[int, list[Route]] = {}  # by row
        self.receives: dict[int, list[Route]] = {}  # by row
        self._sending: dict[Message, Send] = {}
        self._receiving: dict[Message, Receive] = {}

    def send(self, row: int, action: Action) -> steps.Step:
        """A send, to be wired to whatever computes its value."""
        routes = self.sends[row] = self._routes(row, action)
        sending = steps.Sending(
            [self._transport.sender(route, self._shapes.of(route.message)) for route in routes]
        )
        for route in routes:
            self._sending[route.message] = sending.put
        return self._grouped(row, sending)

    def _grouped(self, row: int, step: steps.Step) -> steps.Step:
        """A transfer that keeps an order is launched with its group."""
        if not self._is_ordered(row):
            return step
        assert isinstance(self._transport, OrderedTransport)
        return steps.InGroup(step, self._transport.post, is_last=self.ends[row] == row)

    def _is_ordered(self, row: int) -> bool:
        return bool(self._program.lanes[self._program.lane_of[row]].is_one_wire)

    def receive(self, row: int, action: Action) -> steps.Step:
        """Whoever reads it takes it: nothing is waited for before."""
        routes = self.receives[row] = self._routes(row, action)
        for route in routes:
            call = self._transport.receiver(route, self._shapes.of(route.message))
            self._receiving[route.message] = call
        if not self._is_ordered(row):
            return steps.Plain((), 0)
        assert isinstance(self._transport, OrderedTransport)
        posters = [self._transport.poster(r, self._shapes.of(r.message)) for r in routes]
        return self._grouped(row, steps.Posting(posters))

    def takes(self, direction: Direction, action: Action, number: int) -> list[Receive]:
        """Calls that get what an action reads, edge by edge."""
        return [
            self._take(message) for message in self._edges(direction, action, number, is_read=True)
        ]

    def puts(self, direction: Direction, action: Action, number: int) -> list[Send]:
        """Calls that hand on what an action writes, edge by edge."""
        return [
            self._put(message) for message in self._edges(direction, action, number, is_read=False)
        ]

    def carried(self, action: Action, number: int) -> list[Carried] | None:
        """What each put of a forward hands on; None where all hand on everything."""
        graph = self._program.graph
        along = self._edges(Direction.ACTIVATION, action, number, is_read=False)
        edges = [graph.edges[one.edge] for one in along if one.edge < len(graph.edges)]
        found = [Carried(e, self._carries.get(e), e in graph.fixed) for e in edges]
        return found if any(one.names is not None or one.is_fixed for one in found) else None

    def place(self, action: Action) -> int:
        """Where the segment of an action is among those of its stage."""
        return self._places.get((action.stage, action.segment), 0)

    def forget(self) -> None:
        """Drop what a run that failed has left."""
        self._local.begin((), ())

    def _take(self, message: Message) -> Receive:
        if self._is_fixed(message):
            return _nothing
        return self._receiving.get(message) or self._local.receiver(*self._at_home(message))

    def _put(self, message: Message) -> Send:
        if not self._is_wanted(message):
            return _drop
        return self._sending.get(message) or self._local.sender(*self._at_home(message))

    def _routes(self, row: int, action: Action) -> list[Route]:
        """The message of each microbatch that a send or receive covers."""
        assert action.edge is not None
        actions, origin = self._program.actions, int(self._program.origin[row])
        ends = self._ends(row, origin)
        source = f"{actions.stage[origin]}{Kind(int(actions.kind[origin])).name}"
        direction = DIRECTIONS[action.kind]
        return [
            Route(
                Message(action.edge, direction, number),
                *ends,
                f"{source}{number}",
                row,
            )
            for number in numbers_of(action)
        ]

    def _ends(self, row: int, origin: int) -> tuple[int, int]:
        """The devices that a send or receive is between."""
        device, needs = self._program.device_of, self._program.dependencies
        if self._program.actions.kind[row] in RECEIVES:
            return int(device[origin]), int(device[row])
        (receive,) = needs.consumer[(needs.producer == row) & (needs.value == Value.MESSAGE)]
        return int(device[row]), int(device[receive])

    def _edges(
        self, direction: Direction, action: Action, number: int, *, is_read: bool
    ) -> Iterator[Message]:
        """What an action reads or writes; between the segments of a stage that is an edge, too."""
        edges, segment = self._program.graph.edges, self.place(action)
        is_into = is_read == (direction is Direction.ACTIVATION)  # the edges into the stage
        if segment != (0 if is_into else self._segments[action.pipe, action.stage] - 1):
            border = segment - 1 if is_into else segment
            yield Message(self._first_border(action) + border, direction, number)
            return
        for edge, ends in sorted(enumerate(edges), key=lambda one: one[1]):
            if ends[1 if is_into else 0] == action.stage:
                yield Message(edge, direction, number)

    def _first_border(self, action: Action) -> int:
        """The number of the first border within a stage, after those of all edges."""
        before = range(action.stage)
        counts = (self._segments.get((action.pipe, stage), 0) for stage in before)
        return len(self._program.graph.edges) + sum(counts)

    def _is_wanted(self, message: Message) -> bool:
        """Whether anybody reads it: nobody does the gradient of what does not learn."""
        graph = self._program.graph
        if message.direction is Direction.ACTIVATION or message.edge >= len(graph.edges):
            return True
        is_learning = graph.stages[graph.edges[message.edge][0]].is_learning
        return is_learning and not self._is_fixed(message)

    def _is_fixed(self, message: Message) -> bool:
        graph = self._program.graph
        is_back = message.direction is Direction.GRADIENT and message.edge < len(graph.edges)
        return is_back and graph.edges[message.edge] in graph.fixed

    def _at_home(self, message: Message) -> tuple[Route, Shapes]:
        return Route(message, 0, 0, "what a stage returned", 0), self._shapes.of(message)


def _places(actions: Actions) -> dict[tuple[int, int | None], int]:
    """Where each segment is among those of its stage; some numbers may be missing."""
    cells = np.stack([actions.stage, actions.segment])[:, actions.segment >= 0]
    found: dict[tuple[int, int | None], int] = {}
    stages: dict[int, int] = defaultdict(int)
    for stage, segment in np.unique(cells, axis=1).T.tolist():
        found[stage, segment] = stages[stage]
        stages[stage] += 1
    return found


def numbers_of(action: Action) -> range:
    """The microbatches that an action covers."""
    assert action.microbatch is not None
    return range(action.microbatch, action.microbatch + action.span)


def _nothing() -> Values:
    """The gradient of what has none."""
    return ()


def _drop(values: Values) -> None:
    """The gradient of what does not learn, which nobody reads."""


def groups_in(ring: Ring, cost: Cost | None) -> dict[int, Sequence[int]]:
    """The groups of each wire that keeps an order; in what repeats, each transfer by itself."""
    program, even = ring.program, evened(cost)
    return dict(singly(program) if ring.is_periodic else groups_of(program, even))


def ends_of_groups(program: Program, groups: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """For each transfer that keeps an order, the last of its group."""
    found = dict[int, int]()
    for index, lane in enumerate(program.lanes):
        if lane.is_one_wire:
            first, stop = program.bounds[index : index + 2].tolist()
            sizes = groups[lane.device]
            last = np.repeat(first - 1 + np.cumsum(sizes), sizes).tolist()
            found |= dict(zip(range(first, stop), last, strict=True))
    return found
