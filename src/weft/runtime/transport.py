"""Transports: how a value gets from device to device, behind one small Protocol.

A message is identified by edge, direction and microbatch, never by the order of arrival. A
transport carries tensors; nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from weft.ir.kinds import Direction


class Message(NamedTuple):
    """What a message is."""

    edge: int
    direction: Direction
    microbatch: int


class Transport(Protocol):
    """What the executor of one device needs of the world."""

    def send(self, message: Message, destination: int, values: Sequence[Tensor | None]) -> None:
        """Hand the values over; they may be changed by nobody from here on."""

    def has(self, message: Message) -> bool:
        """Whether a message can be received without waiting for another device's action."""

    def receive(self, message: Message, source: int) -> Sequence[Tensor | None]:
        """The values of a message."""


class Loopback:
    """All devices in one process and one thread: a message is a place in a table."""

    def __init__(self) -> None:
        self._waiting: dict[Message, Sequence[Tensor | None]] = {}

    def send(self, message: Message, destination: int, values: Sequence[Tensor | None]) -> None:
        self._waiting[message] = values

    def has(self, message: Message) -> bool:
        return message in self._waiting

    def receive(self, message: Message, source: int) -> Sequence[Tensor | None]:
        return self._waiting.pop(message)

    @property
    def in_flight(self) -> int:
        return len(self._waiting)
