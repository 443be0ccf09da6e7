"""Mixed: copies between GPUs of one host, NCCL between hosts, in one program.

    host a   rank 0 ══ rank 1 ── rank 2 ══ rank 3   host b
                 peer       nccl      peer

Only what goes from host to host has to keep an order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from weft.runtime.transport import OrderedTransport, Transport
from weft.runtime.transport.message import (
    Meet,
    Post,
    Receive,
    Route,
    Send,
    Shapes,
    Unknown,
    Values,
)

IsFar: TypeAlias = Callable[[int, int], bool]  # of a source and a destination


class Mixed:
    """Two transports, one for what is near and one for what is far."""

    def __init__(self, near: Transport, far: OrderedTransport, is_far: IsFar) -> None:
        self._near, self.far, self._is_far = near, far, is_far

    def sender(self, route: Route, shapes: Shapes) -> Send:
        return self._of(route).sender(route, shapes)

    def receiver(self, route: Route, shapes: Shapes) -> Receive:
        return self._of(route).receiver(route, shapes)

    def poster(self, route: Route, shapes: Shapes) -> Post:
        return self.far.poster(route, shapes)

    def post(self, is_last: bool) -> None:
        self.far.post(is_last)

    def meeting(self, outgoing: Sequence[Route], incoming: Sequence[Route]) -> Meet:
        far = [route for route in incoming if self._of(route) is self.far]
        launched = self.far.meeting([one for one in outgoing if self._of(one) is self.far], far)
        near = {
            route: self._near.receiver(route, Unknown()) for route in incoming if route not in far
        }

        def meet() -> list[Values]:
            found = dict(zip(far, launched(), strict=True))
            return [found[one] if one in found else near[one]() for one in incoming]

        return meet

    def begin(self, incoming: Sequence[Route], outgoing: Sequence[Route]) -> None:
        for transport in self._both:
            transport.begin(incoming, outgoing)

    def go_on(self, incoming: Sequence[Route], outgoing: Sequence[Route]) -> None:
        for transport in self._both:
            transport.go_on(incoming, outgoing)

    def end(self) -> None:
        for transport in self._both:
            transport.end()

    def abandon(self) -> None:
        for transport in self._both:
            transport.abandon()

    def close(self) -> None:
        for transport in self._both:
            transport.close()

    @property
    def _both(self) -> tuple[Transport, Transport]:
        return self._near, self.far

    def _of(self, route: Route) -> Transport:
        return self.far if self._is_far(route.source, route.destination) else self._near
