"""Process groups of torch as a transport: gloo between hosts; values of GPUs go through their host.

One group for each direction, so that a late activation never holds up a gradient. Receives are
posted in the order in which the other end sends, a few ahead of need; sends go on in the
background and are waited for oldest first, a window of them for each channel at most. Threads that
use the same channel begin transfers one by one, and wait for them at the same time.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from weft.errors import RankError
from weft.ir.kinds import Direction
from weft.runtime.ranks.mesh import Mesh
from weft.runtime.ranks.window import Windows
from weft.runtime.transport.channel import Channel, Incoming, Outgoing, Posted, Sent
from weft.runtime.transport.descriptions import Descriptions
from weft.runtime.transport.groups import Gloo, reason_of
from weft.runtime.transport.message import (
    Layout,
    Message,
    Receive,
    Route,
    Send,
    Shapes,
    TensorShape,
    Values,
)

AHEAD = 4  # receives of a channel that are posted before they are needed
MOST_VALUES = 64  # of a message
FOREVER = datetime.timedelta(days=365)


class Grouped:
    """Messages through process groups; several threads may send and receive, each its own."""

    def __init__(
        self,
        mesh: Mesh,
        groups: Gloo,
        *,
        numbers: int,
        windows: Windows,
    ) -> None:
        self._mesh, self._groups, self._windows = mesh, groups, windows
        self._numbers = numbers  # that microbatches and copies have
        self._outgoing: dict[Channel, Outgoing] = {}
        self._incoming: dict[Channel, Incoming] = {}
        self._described = Descriptions(mesh)
        self._posted: dict[Message, list[Posted]] = {}
        self._unheard: set[Message] = set()  # gradients of which it is not known who is there

    def sender(self, route: Route, shapes: Shapes) -> Send:
        self._described.add(route, shapes)
        outgoing = self._to(route)
        window = self._windows[route.source, route.destination]

        def send(values: Values) -> None:
            self._send(route, self._described.sent(route, values), values)
            while sent := outgoing.oldest(window * max(1, len(values))):
                self._finish_sent(sent)

        return send

    def receiver(self, route: Route, shapes: Shapes) -> Receive:
        message = route.message
        self._described.add(route, shapes)
        incoming = self._from(route)

        def receive() -> Values:
            posted = self._taken(route, incoming)
            for work, _ in posted:
                if work is not None:
                    self._finish(work, route, str(route))
            values: Values = [value for _, value in posted]
            self._check(route)
            if message in self._unheard:
                self._unheard.discard(message)
                values = self._described.there(route, values)
            with incoming.lock:
                self._post_ahead(incoming, least=1)
            return values

        return receive

    def begin(self, incoming: Sequence[Route], outgoing: Sequence[Route]) -> None:
        for channel in self._of_messages():
            channel.coming.clear()
        self.go_on(sorted(incoming, key=lambda route: route.turn), outgoing)

    def go_on(self, incoming: Sequence[Route], outgoing: Sequence[Route]) -> None:
        self._described.begin(outgoing)
        for route in incoming:
            self._from(route).coming.append(route)
        for channel in self._of_messages():
            self._post_ahead(channel, least=0)

    def _of_messages(self) -> list[Incoming]:
        """The channels of what is announced; gradients and weights of copies may be under way."""
        return [one for (_, way), one in self._incoming.items() if way is not Direction.BOTH]

    def end(self) -> None:
        for channel in self._outgoing.values():
            while sent := channel.oldest(0):
                self._finish_sent(sent)

    def abandon(self) -> None:
        """Other ranks may wait for what this one was to send, or to read."""
        self._groups.shut()

    def close(self) -> None:
        for under_way in (self._outgoing, self._incoming, self._posted):
            under_way.clear()
        self._groups.close()

    def _to(self, route: Route) -> Outgoing:
        return self._outgoing.setdefault((route.destination, route.message.direction), Outgoing())

    def _from(self, route: Route) -> Incoming:
        return self._incoming.setdefault((route.source, route.message.direction), Incoming())

    def _send(self, route: Route, layout: Layout, values: Values) -> None:
        message, destination = route.message, route.destination
        line = self._groups.lines[route.source, destination, message.direction]
        outgoing = self._to(route)
        with outgoing.lock:
            for place, entry in enumerate(layout):
                if not isinstance(entry, TensorShape):
                    continue
                value = values[place]
                if value is None:  # nothing computed it
                    value = torch.zeros(entry.shape, dtype=entry.dtype, device="cpu")
                tensor, tag = value.contiguous().cpu(), self._tag(message, place)
                try:
                    work = line.group.send([_real(tensor)], line.destination, tag)
                except RuntimeError as error:
                    raise self._lost(error, route, _reading(route)) from None
                outgoing.sent.append(Sent(work, route, tensor))

    def _taken(self, route: Route, incoming: Incoming) -> list[Posted]:
        """This receive, posted after all that the other end sends before it."""
        with incoming.lock:
            while incoming.coming and route.message not in self._posted:
                self._post_first(incoming)
            if route.message not in self._posted:
                incoming.coming.append(route)
                self._post_first(incoming)
            incoming.ahead -= 1
            return self._posted.pop(route.message)

    def _post_ahead(self, incoming: Incoming, *, least: int) -> None:
        """Post the next receives of a channel, as far as their layouts are known by now.

        At least one for each that was taken, or other threads would wait for one of its readers.
        """
        for _ in range(max(least, AHEAD - incoming.ahead)):
            if not incoming.coming or self._described.known(incoming.coming[0]) is None:
                return
            self._post_first(incoming)

    def _post_first(self, incoming: Incoming) -> None:
        """Post the next receive of a channel, once its layout is known."""
        route = incoming.coming.popleft()
        layout, is_heard = self._described.coming(route)
        if route.message.direction is Direction.GRADIENT and not is_heard:
            self._unheard.add(route.message)
        self._post(incoming, route, layout)

    def _post(self, incoming: Incoming, route: Route, layout: Layout) -> None:
        message = route.message
        line = self._groups.lines[route.source, route.destination, message.direction]
        posted = []
        for place, entry in enumerate(layout):
            if not isinstance(entry, TensorShape):
                posted.append(Posted(None, entry))
                continue
            tensor = torch.empty(entry.shape, dtype=entry.dtype, device="cpu")
            tag = self._tag(message, place)
            try:
                work = line.group.recv([_real(tensor)], line.source, tag)
            except RuntimeError as error:
                raise self._lost(error, route, str(route)) from None
            posted.append(Posted(work, tensor))
        self._posted[message] = posted
        incoming.ahead += 1

    def _tag(self, message: Message, place: int) -> int:
        return (message.edge * MOST_VALUES + place) * self._numbers + message.microbatch

    def _finish_sent(self, sent: Sent) -> None:
        self._finish(sent.work, sent.route, _reading(sent.route))

    def _finish(self, work: dist.Work, route: Route, what: str) -> None:
        """Wait for a transfer."""
        deadline = self._mesh.deadline
        try:
            work.wait(FOREVER if deadline is None else datetime.timedelta(seconds=deadline))
        except RuntimeError as error:
            raise self._lost(error, route, what) from None

    def _check(self, route: Route) -> None:
        """What has arrived may be what a rank that gave up had left to send."""
        try:
            self._mesh.look()
        except RankError as error:
            raise self._mesh.blamed(error, str(route)) from None

    def _lost(self, error: RuntimeError, route: Route, what: str) -> RankError:
        """Why a transfer failed: it took too long, or the mesh knows better."""
        mesh = self._mesh
        if "imed out" in str(error) and mesh.deadline is not None:
            late = f"nothing came within the deadline of {mesh.deadline:g} s{mesh.occasion}"
            return mesh.blamed(late, what)
        return reason_of(mesh, what, route.source, route.destination)


def _real(tensor: Tensor) -> Tensor:
    """The same memory in numbers that every group can carry."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _reading(route: Route) -> str:
    return f"device {route.destination} to read {route.action}"
