"""Windows: the stretches of time that a picture shows, below each other."""

from __future__ import annotations

from typing import NamedTuple


class Window(NamedTuple):
    """From when to when, in seconds since the first start."""

    start: float
    end: float

    @property
    def length(self) -> float:
        """In seconds."""
        return self.end - self.start


class Panel(NamedTuple):
    """A window with rows and an axis of its own; a name only where there are several."""

    name: str
    window: Window
