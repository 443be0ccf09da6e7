"""Measurements as JSON, beside the cost that they belong to.

    {"date": "2026-11-15T07:10:41+00:00",
     "machine": {"processor": "x86_64", "cores": "2", "torch": "2.13.0"},
     "model": {"layers": 8, "hidden": 64},
     "ranks": 4, "transport": "shared", "rounds": 20,
     "average": "median", "spread": {"forward": [0.01, 0.02, 0.01, 0.02]},
     "hops": [[4096, 4.1e-5], [65536, 6.0e-5]], "r_squared": 0.99}

Only "date" is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from weft.cost import Measurement, Times
from weft.cost.measurement import Average
from weft.notation.json.reading import Node

_TIMES = tuple(field.name for field in fields(Times))


def measurement_object(measurement: Measurement) -> dict[str, object]:
    """What `read_measurement` reads."""
    return {
        "date": measurement.date,
        "machine": dict(measurement.machine),
        "model": dict(measurement.model),
        "ranks": int(measurement.ranks),
        "transport": measurement.transport,
        "rounds": int(measurement.rounds),
        "average": measurement.average.value,
        "spread": {name: [*map(float, column)] for name, column in measurement.spread.items()},
        "hops": [[float(size), float(seconds)] for size, seconds in measurement.hops],
        "r_squared": float(measurement.r_squared),
    }


def read_measurement(node: Node, stages: int) -> Measurement:
    """The measurement of a cost with that many stages."""
    members = node.members(_READERS, ("date",))
    return Measurement(**{name: _READERS[name](one, stages) for name, one in members.items()})


def _words(node: Node, _: int) -> dict[str, str]:
    return {name: member.text() for name, member in node.members_of_any_name().items()}


def _sizes(node: Node, _: int) -> dict[str, float]:
    return {name: member.number() for name, member in node.members_of_any_name().items()}


def _spread(node: Node, stages: int) -> dict[str, tuple[float, ...]]:
    members = node.members(_TIMES).items()
    return {name: tuple(member.numbers(exactly=stages)) for name, member in members}


def _hops(node: Node, _: int) -> tuple[tuple[float, float], ...]:
    return tuple(_hop(item) for item in node.items())


def _hop(node: Node) -> tuple[float, float]:
    size, seconds = node.numbers(exactly=2)
    return size, seconds


_READERS: dict[str, Callable[[Node, int], Any]] = {
    "date": lambda node, _: node.text(),
    "machine": _words,
    "model": _sizes,
    "ranks": lambda node, _: node.count(least=1),
    "transport": lambda node, _: node.text(),
    "rounds": lambda node, _: node.count(),
    "average": lambda node, _: node.choice(Average),
    "spread": _spread,
    "hops": _hops,
    "r_squared": lambda node, _: node.number(),
}
