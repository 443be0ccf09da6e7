"""Process groups of torch as a transport: gloo between CPUs, NCCL between GPUs.

One group for each direction, so that a late activation never holds up a gradient; on GPUs one
for each pair of neighbours and direction, as a communicator runs one transfer at a time. Receives
are posted in the order in which the other end sends, a few ahead of need; sends go on in the
background and are waited for oldest first, a window of them for each channel at most.
"""

from __future__ import annotations

import datetime
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from weft.errors import RankError, WeftError
from weft.ir.kinds import Direction
from weft.runtime.ranks.mesh import Mesh, Record
from weft.runtime.ranks.window import Windows
from weft.runtime.stage.values import Structure
from weft.runtime.transport.groups import Groups, reason_of
from weft.runtime.transport.message import (
    NAME,
    Form,
    Forms,
    Layout,
    Message,
    Receive,
    Route,
    Send,
    Values,
    layout_of,
    name_in,
    named,
    read,
    written,
)

AHEAD = 4  # receives of a channel that are posted before they are needed
MOST_VALUES = 64  # of a message
FOREVER = datetime.timedelta(days=365)

Channel: TypeAlias = tuple[int, Direction]


class Posted(NamedTuple):
    """A receive under way, or a value that does not travel."""

    work: dist.Work | None
    value: Tensor | Structure | None


class Sent(NamedTuple):
    """A send under way, and the tensor that must live until it is over."""

    work: dist.Work
    route: Route
    tensor: Tensor


class Grouped:
    """Messages through process groups."""

    is_ordered = True

    def __init__(
        self,
        mesh: Mesh,
        groups: Groups,
        *,
        numbers: int,
        device: torch.device,
        windows: Windows,
    ) -> None:
        self._mesh, self._groups, self._device, self._windows = mesh, groups, device, windows
        self._numbers = numbers  # that microbatches and copies have
        self._sent: dict[Channel, deque[Sent]] = defaultdict(deque)
        self._forms: dict[Message, Forms] = {}
        self._coming: dict[Channel, deque[Route]] = defaultdict(deque)
        self._posted: dict[Message, list[Posted]] = {}
        self._ahead: dict[Channel, int] = defaultdict(int)  # posted and not taken
        self._headers: dict[Message, deque[bytes]] = defaultdict(deque)
        self._unsent: dict[Message, Route] = {}
        self._unheard: set[Message] = set()  # gradients of which it is not known who is there
        mesh.handle(Record.HEADER, self._on_header)

    def sender(self, route: Route, forms: Forms) -> Send:
        message, destination = route.message, route.destination
        self._forms[message] = forms
        queue = self._sent[destination, message.direction]
        window = self._windows[route.source, destination]

        def send(values: Values) -> None:
            self._unsent.pop(message, None)
            found, known = layout_of(values), forms()
            if known is None or message.direction is Direction.GRADIENT:
                forms.see(found)
                self._mesh.tell(destination, Record.HEADER, named(message) + written(found))
            if known is None:
                known = found
            elif not _is_within(found, known):
                raise _changed(route, known, found)
            self._send(route, known, values)
            while len(queue) > window * max(1, len(values)):
                self._finish_sent(queue.popleft())

        return send

    def receiver(self, route: Route, forms: Forms) -> Receive:
        message = route.message
        self._forms[message] = forms

        def receive() -> Values:
            self._post_until(route)
            values: list[Tensor | Structure | None] = []
            self._ahead[route.source, message.direction] -= 1
            for work, value in self._posted.pop(message):
                if work is not None:
                    self._finish(work, route, str(route))
                values.append(value)
            self._check(route)
            if message in self._unheard:
                self._unheard.discard(message)
                sent = read(self._header(route))
                forms.see(sent)
                values = [None if form is None else v for v, form in zip(values, sent, strict=True)]
            self._post_ahead(route)
            return values

        return receive

    def begin(self, incoming: Sequence[Route], outgoing: Sequence[Route]) -> None:
        self._coming.clear()
        self._unsent.clear()
        self.go_on(sorted(incoming, key=lambda route: route.turn), outgoing)

    def go_on(self, incoming: Sequence[Route], outgoing: Sequence[Route]) -> None:
        for route in incoming:
            self._coming[route.source, route.message.direction].append(route)
        self._unsent.update((route.message, route) for route in outgoing)
        for channel, coming in self._coming.items():
            for _ in range(AHEAD - self._ahead[channel]):
                self._post_next(coming)

    def end(self) -> None:
        for queue in self._sent.values():
            while queue:
                self._finish_sent(queue.popleft())

    def abandon(self) -> None:
        """Send and receive what is left with nothing in it: gloo's waits end by that alone."""
        if self._device.type != "cpu":
            return
        for route in self._unsent.values():
            with suppress(RankError):  # that one has ended
                self._send(route, self._forms[route.message]() or (), ())
        for coming in self._coming.values():
            with suppress(RankError):
                while coming and self._forms[coming[0].message]() is not None:
                    self._post(coming.popleft())

    def close(self) -> None:
        for under_way in (self._sent, self._posted, self._coming, self._unsent):
            under_way.clear()
        self._groups.close()

    def _send(self, route: Route, layout: Layout, values: Values) -> None:
        message, destination = route.message, route.destination
        line = self._groups.lines[route.source, destination, message.direction]
        queue = self._sent[destination, message.direction]
        for place, form in enumerate(layout):
            if not isinstance(form, Form):
                continue
            value = values[place] if place < len(values) else None
            if value is None:  # nothing computed it, or this rank has given up
                value = torch.zeros(form.shape, dtype=form.dtype, device=self._device)
            tensor, tag = value.contiguous(), self._tag(message, place)
            try:
                work = line.group.send([_real(tensor)], line.destination, tag)
            except RuntimeError as error:
                raise self._lost(error, route, _reading(route)) from None
            queue.append(Sent(work, route, tensor))

    def _post_until(self, route: Route) -> None:
        """Post this receive and all that the other end sends before it."""
        coming = self._coming[route.source, route.message.direction]
        while coming and route.message not in self._posted:
            self._post(coming.popleft())
        if route.message not in self._posted:
            self._post(route)

    def _post_ahead(self, route: Route) -> None:
        self._post_next(self._coming[route.source, route.message.direction])

    def _post_next(self, coming: deque[Route]) -> None:
        """Post the next receive of a channel, where its form is known."""
        if coming and self._forms[coming[0].message]() is not None:
            self._post(coming.popleft())

    def _post(self, route: Route) -> None:
        message, source = route.message, route.source
        line = self._groups.lines[source, route.destination, message.direction]
        layout = self._forms[message]()
        if layout is None:
            layout = read(self._header(route))
            self._forms[message].see(layout)
        elif message.direction is Direction.GRADIENT:
            self._unheard.add(message)
        posted = []
        for place, form in enumerate(layout):
            if not isinstance(form, Form):
                posted.append(Posted(None, form))
                continue
            tensor = torch.empty(form.shape, dtype=form.dtype, device=self._device)
            tag = self._tag(message, place)
            try:
                work = line.group.recv([_real(tensor)], line.source, tag)
            except RuntimeError as error:
                raise self._lost(error, route, str(route)) from None
            posted.append(Posted(work, tensor))
        self._posted[message] = posted
        self._ahead[source, message.direction] += 1

    def _header(self, route: Route) -> bytes:
        arrived = self._headers[route.message]
        self._mesh.wait(lambda: bool(arrived), lambda: str(route), route.source)
        return arrived.popleft()

    def _on_header(self, _: int, content: bytes) -> None:
        self._headers[name_in(content)].append(content[NAME.size :])

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
            return mesh.blamed(f"nothing came within the deadline of {mesh.deadline:g} s", what)
        return reason_of(mesh, what, route.source, route.destination)


def _real(tensor: Tensor) -> Tensor:
    """The same memory in numbers that every group can carry."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _is_within(found: Layout, known: Layout) -> bool:
    """Whether what is sent is what the other end expects, but for what is not there."""
    pairs = zip(found, known, strict=False)
    return len(found) == len(known) and all(one in (None, other) for one, other in pairs)


def _changed(route: Route, known: Layout, found: Layout) -> WeftError:
    """What is sent is not what the other end expects."""
    told = [" ".join(map(str, form)) if isinstance(form, Form) else str(form) for form in known]
    sent = [" ".join(map(str, form)) if isinstance(form, Form) else str(form) for form in found]
    return WeftError(
        f"{route} was to be {told} and is {sent}: values change from microbatch to microbatch,"
        f" which process groups cannot carry; on one host use transport='shared'"
    )


def _reading(route: Route) -> str:
    return f"device {route.destination} to read {route.action}"
