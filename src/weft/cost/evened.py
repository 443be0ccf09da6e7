"""Evened costs: what to order transfers by, so that noise does not take exchanges apart."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from weft.cost.cost import Cost, Network, PerStage

NEARLY = 0.1  # of the least


def evened(cost: Cost | None) -> Cost | None:
    """The same cost with nearly equal stages made equal, and messages that take no time.

    Two devices that end at the same moment exchange what they have in one group. Where times
    differ a little, as measured ones do, one would seem to come first; with time for messages,
    which of them does would change from microbatch to microbatch.
    """
    if cost is None:
        return None
    even: dict[str, Any] = {}
    for field in fields(cost.times):
        seconds = getattr(cost.times, field.name)
        even[field.name] = None if seconds is None else _alike(seconds)
    network = Network(message=cost.network.message, host=cost.network.host)
    return replace(cost, times=replace(cost.times, **even), network=network, overhead=0.0)


def _alike(seconds: PerStage) -> PerStage:
    if not seconds or max(seconds) > (1 + NEARLY) * min(seconds):
        return seconds
    return (sum(seconds) / len(seconds),) * len(seconds)
