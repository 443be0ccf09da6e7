"""Findings of stages: what each rank has measured of those that it holds, brought together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from weft.runtime.ranks.world import World


@dataclass(slots=True)
class Found:
    """Of one stage: seconds by field of Times, and bytes by field of Memory."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    sizes: dict[str, float] = field(default_factory=dict)

    def add(self, more: Found) -> None:
        """Take what else was found of the same stage."""
        for name, runs in more.seconds.items():
            self.seconds.setdefault(name, []).extend(runs)
        self.sizes |= more.sizes

    def replace(self, better: Found) -> None:
        """Take what was measured better."""
        self.seconds |= better.seconds
        self.sizes |= better.sizes


def of_all_ranks(found: Mapping[int, Found], world: World) -> dict[int, Found]:
    """Seconds of a stage that several ranks hold come one after the other."""
    share = json.dumps({index: asdict(one) for index, one in found.items()}).encode()
    together: dict[int, Found] = {}
    for text in world.gather(share, "the times of the stages"):
        for index, one in json.loads(text).items():
            together.setdefault(int(index), Found()).add(Found(**one))
    return together
