"""Loopback: all devices in one process and one thread."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from weft.errors import WeftError
from weft.runtime.device.accelerator import used_here
from weft.runtime.transport.message import Message, Receive, Route, Send, Shapes, Values


class Loopback:
    """A message is a place in a table; `is_crossing` where its reader may be on another stream."""

    def __init__(self, *, is_crossing: bool = False) -> None:
        self._is_crossing = is_crossing
        self._waiting: dict[Message, tuple[Values, list[int]]] = {}

    def sender(self, route: Route, shapes: Shapes) -> Send:
        def send(values: Values) -> None:
            self._waiting[route.message] = values, _versions(values)

        return send

    def receiver(self, route: Route, shapes: Shapes) -> Receive:
        def receive() -> Values:
            values, versions = self._waiting.pop(route.message)
            if _versions(values) != versions:
                raise WeftError(
                    f"{route} was changed in place after the stage returned it and before it was"
                    f" read; return a copy (.clone()) of what the stage goes on to change"
                )
            if self._is_crossing:
                used_here(values)
            return values

        return receive

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


def _versions(values: Values) -> list[int]:
    """How often each tensor was changed in place."""
    return [value._version for value in values if isinstance(value, Tensor)]
