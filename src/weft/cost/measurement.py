"""Measurements: where, when and how well a cost was measured.

Knows what stands beside the seconds of a profile; knows none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

Sizes: TypeAlias = Mapping[str, float]
Words: TypeAlias = Mapping[str, str]


class Average(Enum):
    """One figure for several times of the same action; a mean is without outliers."""

    MEDIAN = "median"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a measured cost holds for, and how sure it is.

    date       when it was measured
    machine    what it was measured on, by name: processor, cores, torch ...
    model      sizes of what was measured, by name: layers, hidden ...
    ranks      processes that were busy at the same time
    transport  what carried the messages
    rounds     how often each action was timed, at least
    average    what the seconds are of the times that were measured
    spread     by field of Times, for each stage, the interquartile range over the median
    hops       bytes of messages, and the seconds that they took
    r_squared  how well latency and bandwidth explain the hops; 1 is perfectly
    """

    date: str
    machine: Words = field(default_factory=dict)
    model: Sizes = field(default_factory=dict)
    ranks: int = 1
    transport: str = ""
    rounds: int = 0
    average: Average = Average.MEDIAN
    spread: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    hops: tuple[tuple[float, float], ...] = ()
    r_squared: float = 1.0
