"""Ways to fit: what a reader may change so that every device has the memory, each simulated.

Where no single change is enough, the one that saves most is kept and others are tried beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from weft.cost import Derivation
from weft.draw.units import memory_unit, time_unit
from weft.errors import WeftError
from weft.explain import is_fitting
from weft.timeline import Timeline
from weft.web.reliefs import OFFERED
from weft.web.requests import PageRequest, read_request

Asked: TypeAlias = Mapping[str, object]

ROUNDS = 4
LISTED = 4
SAME = 5e-3  # of the time: no change worth a word
FEW = 40_000  # actions of a program that is offloaded while somebody waits
MOST = 400_000  # actions that are simulated, all ways together: some seconds


@dataclass(frozen=True)
class Way:
    """A change of a request, each respect in words, and what it comes to on as many devices."""

    change: Asked
    words: Mapping[str, str]
    devices: int
    timeline: Timeline = field(repr=False)

    @property
    def memory(self) -> float:
        return max(self.timeline.memory.peaks)


def ways(asked: Asked) -> dict[str, object]:
    """Changes that make a request fit, the fastest first; else the one that comes nearest."""
    nearest = _way(asked, {}, {})
    now = nearest.timeline
    left = MOST
    for _ in range(ROUNDS):
        tried = [*_tried(asked, nearest, left)]
        left -= sum(len(way.timeline.program) for way in tried)
        fitting = [way for way in tried if is_fitting(way.timeline)]
        least = min(tried, key=lambda way: way.memory, default=nearest)
        if fitting or least.memory >= nearest.memory or left < 0:
            break
        nearest = least
    best = sorted(fitting, key=lambda way: way.timeline.makespan)[:LISTED]
    return {
        "ways": [_described(way, now) for way in best],
        "nearest": "" if best or not nearest.words else _described(nearest, now)["words"],
    }


def _tried(asked: Asked, before: Way, left: int) -> Iterator[Way]:
    """Every single change beside those that were made before, while as many actions are left.

    What cannot be done is left out.
    """
    for words, change in _changes(read_request({**asked, **before.change}), asked):
        said = {**before.words, **dict.fromkeys(change, words)}
        try:
            found = _way(asked, {**before.change, **change}, said)
        except WeftError:
            continue
        yield found
        left -= len(found.timeline.program)
        if left < 0:
            return


def _way(asked: Asked, change: Asked, words: Mapping[str, str]) -> Way:
    request = read_request({**asked, **change})
    timeline = request.timeline()
    base = request.costs.base
    each = base.layout.processors * base.layout.replicas if isinstance(base, Derivation) else 1
    return Way(change, words, each * timeline.program.devices, timeline)


def _changes(request: PageRequest, asked: Asked) -> Iterator[tuple[str, Asked]]:
    is_large = 2 * request.shape.stages * request.shape.microbatches > FEW
    base = request.costs.base
    if not request.relief:
        for relief in OFFERED[1:]:
            if not (is_large and "--offload" in relief):
                yield relief, {"relief": relief}
    if not isinstance(base, Derivation):
        return
    if base.model.microbatch > 1:
        half = base.model.microbatch // 2
        yield f"{_counted(half, 'sequence')} a microbatch", {"microbatch_size": half}
    if 2 * base.layout.tensor <= base.device.per_node:
        twice = 2 * base.layout.tensor
        yield f"tensor parallelism of {twice}", {"tensor_parallel": twice}
    if asked.get("data_parallel") or not asked.get("cluster"):
        twice = 2 * base.layout.replicas
        yield f"{twice} copies, which share optimizer state", {"data_parallel": twice}
    twice = 2 * request.shape.devices
    yield f"a pipeline of {twice} devices", {"devices": twice}


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count > 1 else ''}"


def _described(way: Way, now: Timeline) -> dict[str, object]:
    seconds, share = way.timeline.makespan, way.timeline.makespan / now.makespan - 1
    change = (
        f", {abs(share):.0%} {'longer' if share > 0 else 'shorter'}" if abs(share) > SAME else ""
    )
    figures = (
        f"{time_unit(now).amount(seconds)} a step{change},"
        f" {memory_unit(now).amount(way.memory)} on {_counted(way.devices, 'device')}"
    )
    return {"change": way.change, "words": f"{' and '.join(way.words.values())}: {figures}"}
