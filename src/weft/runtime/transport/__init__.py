"""Transports: how values get from device to device, through one small Protocol.

    Loopback   all devices in one process: a message is a place in a table
    Shared     ranks of one host: a message lies in memory that both ends see, of the host or
               of their GPUs
    Grouped    process groups of torch: gloo between CPUs of any hosts
    Nccl       between GPUs of any hosts, in one order of all transfers

A transport is asked once for each end of each route; what it answers is called in every step. But
for Loopback's, such calls may be made by several threads of a rank at once, each its own messages.
All else is called by the main thread, and while no other sends or receives, unless it says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from weft.runtime.transport.message import Meet, Post, Receive, Route, Send, Shapes, Unknown

__all__ = ["OrderedTransport", "Transport", "meeting"]


class Transport(Protocol):
    """What the executors of one process need of the world."""

    def sender(self, route: Route, shapes: Shapes) -> Send:
        """A call that hands values over; they may be changed by nobody from then on."""

    def receiver(self, route: Route, shapes: Shapes) -> Receive:
        """A call that waits for the values; `shapes` says what will arrive, where it is known."""

    def begin(self, incoming: Sequence[Route], outgoing: Sequence[Route]) -> None:
        """Prepare for a run with these messages, in the order of need."""

    def go_on(self, incoming: Sequence[Route], outgoing: Sequence[Route]) -> None:
        """Prepare for further messages of a run, each channel's in the order of its sender."""

    def end(self) -> None:
        """Wait until what was sent has left."""

    def abandon(self) -> None:
        """Leave a run that has failed, so that no other rank waits for the rest of it.

        Other threads may still be sending or receiving: the mesh has ended their waits, or they
        end when all ranks leave the run.
        """

    def close(self) -> None:
        """Close what was opened; nothing is sent or received any more."""


@runtime_checkable
class OrderedTransport(Transport, Protocol):
    """One whose transfers all ranks launch in one order, several as a group."""

    def poster(self, route: Route, shapes: Shapes) -> Post:
        """A call that puts a receive into the group at hand; its receiver waits for it later."""

    def post(self, is_last: bool) -> None:
        """After each transfer: launch the group at hand if that was its last."""

    def meeting(self, outgoing: Sequence[Route], incoming: Sequence[Route]) -> Meet:
        """A call that launches what senders were given and what comes, as one group."""


def meeting(transport: Transport, outgoing: Sequence[Route], incoming: Sequence[Route]) -> Meet:
    """A call that waits for what comes along some routes, while others take what was sent.

    Where a send waits for its receive, several ranks that send to each other have to do both at
    once.
    """
    if isinstance(transport, OrderedTransport):
        return transport.meeting(outgoing, incoming)
    receives = [transport.receiver(route, Unknown()) for route in incoming]
    return lambda: [receive() for receive in receives]
