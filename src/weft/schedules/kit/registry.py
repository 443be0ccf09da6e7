"""Registry: schedules by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from weft.errors import UnknownSchedule
from weft.schedules.kit.schedule import Schedule


class Registry:
    """An immutable collection of schedules, in the order in which one would learn them."""

    def __init__(self, schedules: Iterable[Schedule]) -> None:
        self._by_name = {schedule.name: schedule for schedule in schedules}

    def __iter__(self) -> Iterator[Schedule]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def __getitem__(self, name: str) -> Schedule:
        if name in self._by_name:
            return self._by_name[name]
        raise UnknownSchedule(f"no schedule named {name!r}. {self._hint(name)}")

    def _hint(self, name: str) -> str:
        typed = name.lower().replace("_", "-")
        near = [known for known in self._by_name if typed and known.startswith(typed)]
        near = near or get_close_matches(typed, self._by_name, n=1, cutoff=0.5)
        return f"Did you mean {near[0]}?" if near else f"Known: {', '.join(self._by_name)}."
