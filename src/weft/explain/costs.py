"""Changes of cost: how much sooner all would end if something were shorter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np

from weft.cost import Cost, Link, Network
from weft.ir.kinds import Kind
from weft.simulate import simulate
from weft.timeline import Timeline

OFF = 0.1  # of an action's time, to see what it brings
UNEVEN = 0.02  # of the mean work of a device: less is called even
WORDS = {
    "forward": "every forward",
    "backward": "every backward",
    "input_grad": "every input gradient",
    "weight_grad": "every weight gradient",
}

Changed: TypeAlias = Callable[[Cost], Cost]


class Change(NamedTuple):
    """What would be different, and the makespan that results."""

    words: str
    seconds: float


def changes(timeline: Timeline) -> Iterator[Change]:
    """Shorter actions, a host that takes no time, even stages, instant wires: each alone."""
    wanted: list[tuple[str, Changed]] = [
        (f"{WORDS[name]} {OFF:.0%} shorter", lambda cost, name=name: _shorter(cost, name))  # type: ignore[misc]
        for name in _names(timeline)
    ]
    if timeline.cost.overhead > 0:
        wanted.append(("a host that takes no time", lambda cost: replace(cost, overhead=0.0)))
    if sum(timeline.exposed_communication) > 0 or _travels(timeline.cost.network):
        wanted.append(("values that arrive at once", _instant))
    if _is_uneven(timeline):
        wanted.append(("equal work on all stages", _even))
    for words, change in wanted:
        cost = change(timeline.cost)
        yield Change(words, simulate(timeline.program, cost).makespan)


def _names(timeline: Timeline) -> Iterator[str]:
    """The times that count: whole backwards have their own where none of them is split."""
    has_inputs = bool((timeline.program.actions.kind == Kind.I).any())
    yield "forward"
    if timeline.cost.times.backward is not None and not has_inputs:
        yield "backward"
    else:
        yield from ("input_grad", "weight_grad")


def _shorter(cost: Cost, name: str) -> Cost:
    seconds = tuple((1 - OFF) * second for second in getattr(cost.times, name))
    return replace(cost, times=replace(cost.times, **{name: seconds}))


def _instant(cost: Cost) -> Cost:
    return replace(cost, network=replace(cost.network, default=Link(), between={}))


def _travels(network: Network) -> bool:
    links = (network.default, *network.between.values())
    return any(link.latency > 0 or math.isfinite(link.bandwidth) for link in links)


def _even(cost: Cost) -> Cost:
    times = {name: getattr(cost.times, name) for name in (*WORDS, "recompute")}
    means = {
        name: (float(np.mean(seconds)),) * cost.stages
        for name, seconds in times.items()
        if seconds is not None
    }
    return replace(cost, times=replace(cost.times, **means))


def _is_uneven(timeline: Timeline) -> bool:
    """Whether devices work for different times though they hold equally many stages."""
    work = timeline.device_work
    held = {len(stages) for stages in timeline.program.placement.held}
    return len(held) == 1 and bool(np.ptp(work) > UNEVEN * work.mean())
