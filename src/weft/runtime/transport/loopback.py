"""Loopback: all devices in one process and one thread."""

from __future__ import annotations

from collections.abc import Sequence

from weft.runtime.message import Forms, Message, Receive, Route, Send, Values


class Loopback:
    """A message is a place in a table."""

    is_ordered = False

    def __init__(self) -> None:
        self._waiting: dict[Message, Values] = {}

    def sender(self, route: Route, forms: Forms) -> Send:
        def send(values: Values) -> None:
            self._waiting[route.message] = values

        return send

    def receiver(self, route: Route, forms: Forms) -> Receive:
        return lambda: self._waiting.pop(route.message)

    def has(self, message: Message) -> bool:
        """Whether a message can be received now."""
        return message in self._waiting

    def begin(self, incoming: Sequence[Route], outgoing: Sequence[Route]) -> None:
        """Forget what a run that failed has left."""
        self._waiting.clear()

    def go_on(self, incoming: Sequence[Route], outgoing: Sequence[Route]) -> None:
        """Nothing to prepare."""

    def abandon(self) -> None:
        """Nobody else waits."""

    def end(self) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """Nothing is open."""
