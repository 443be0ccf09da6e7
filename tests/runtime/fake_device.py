"""A device that records what waits for what, and runs what was launched in any order that allows.

Nothing computes: a launch is a name. A stream runs its launches in order; a wait holds it until the
event has been reached as it was recorded when the wait was launched.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class FakeEvent:
    """The place it was recorded at last: a stream, and how many launches that had."""

    place: tuple[FakeStream, int] | None = None

    def record(self, stream: FakeStream) -> None:
        self.place = stream, len(stream.launches)

    def query(self) -> bool:
        return self.place is None or self.place[0].done >= self.place[1]


@dataclass
class FakeStream:
    """Launches in order: names, or places of other streams to wait for."""

    name: str
    launches: list[object] = field(default_factory=list)
    done: int = 0

    def wait_event(self, event: FakeEvent) -> None:
        if event.place is not None:
            self.launches.append(event.place)

    def can_go_on(self) -> bool:
        if self.done == len(self.launches):
            return False
        found = self.launches[self.done]
        return not isinstance(found, tuple) or found[0].done >= found[1]


class FakeDevice:
    """Streams by name; `run` executes what was launched, in an order of its own."""

    def __init__(self) -> None:
        self._streams: dict[str, FakeStream] = {}
        self.chosen = self.stream("compute")
        self.entered: Any = self.chosen
        self.pairs: set[Any] = set()

    def begin(self) -> FakeStream:
        self.entered = self.chosen
        return self.chosen

    def stream(self, name: str) -> FakeStream:
        return self._streams.setdefault(name, FakeStream(name))

    def enter(self, stream: Any) -> None:
        self.entered = stream

    def event(self) -> FakeEvent:
        return FakeEvent()

    def now(self) -> FakeEvent:
        return FakeEvent()

    def take_back(self, points: Iterable[Any]) -> None:
        """Events are made anew."""

    def clock(self) -> tuple[FakeEvent, float]:
        return FakeEvent(), 0.0

    def seconds(self, first: Any, second: Any) -> float:
        return 0.0

    def launch(self, name: object) -> None:
        """What a kernel would be."""
        self.entered.launches.append(name)

    def run(self, seed: int) -> list[object]:
        """The names, in the order in which they ran; streams go on by chance."""
        chance, order = random.Random(seed), list[object]()
        while able := [stream for stream in self._streams.values() if stream.can_go_on()]:
            stream = chance.choice(able)
            for _ in range(chance.randint(1, 8)):
                if not stream.can_go_on():
                    break
                found = stream.launches[stream.done]
                stream.done += 1
                if not isinstance(found, tuple):
                    order.append(found)
        assert all(stream.done == len(stream.launches) for stream in self._streams.values())
        return order
