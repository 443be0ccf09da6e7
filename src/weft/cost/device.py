"""Device: what a processor, its memory and its links can do.

Knows seconds of FLOPs and bytes; knows no model. How near products come to the peak depends on
their size, so it is a table, read in log space between its points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from weft.cost.checks import (
    check_count,
    check_flag,
    check_link,
    check_number,
    check_positive,
    check_text,
    quoted,
)
from weft.cost.cost import Link
from weft.cost.mapping import as_mapping, keyword_arguments
from weft.cost.provenance import Estimate, Provenance
from weft.errors import InputError

_SAME = 0.01  # a product within a per cent of a point's FLOPs is at that point
_UNLIMITED = Link()
LINKS = ("host", "near", "far")
_TABLES = ("matmul", "attention")


@dataclass(frozen=True, slots=True)
class Point:
    """A product of this many FLOPs reaches this fraction of the peak."""

    flops: float
    fraction: float
    is_measured: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A processor with its memory, its link to the host and its links to others.

    peak       FLOP/s of matrix products, in the precision that the model is trained in
    bandwidth  bytes per second of its memory, reading or writing
    memory     bytes
    host       the link to the host, each way
    near, far  links to devices of the same node and of another, each way
    per_node   devices that share a node
    matmul     what matrix products reach of the peak, by the FLOPs of one product
    attention  what attention kernels reach, by the FLOPs of one kernel
    """

    peak: float
    bandwidth: float = math.inf
    memory: float = math.inf
    host: Link = _UNLIMITED
    near: Link = _UNLIMITED
    far: Link = _UNLIMITED
    per_node: int = 1
    matmul: tuple[Point, ...] = ()
    attention: tuple[Point, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> Device:
        """The device that keys and values describe; InputError names the key that is wrong."""
        given = keyword_arguments(cls, mapping, "device")
        for name in given.keys() & set(LINKS):
            given[name] = Link(**keyword_arguments(Link, given[name], name))
        for name in given.keys() & set(_TABLES):
            given[name] = _points(given[name], name)
        return cls(**given)

    def to_mapping(self) -> dict[str, object]:
        """What `from_mapping` reads."""
        return as_mapping(self)

    def multiplying(self, flops: float, *, moved: float, count: float = 1) -> Estimate:
        """`count` equal matrix products of `flops` together, which move this many bytes."""
        fraction, provenance = efficiency(self.matmul, flops / count)
        computing = flops / (self.peak * fraction)
        moving = self.moving(moved)
        return moving if moving.seconds > computing else Estimate(computing, provenance)

    def attending(self, flops: float) -> Estimate:
        """One attention kernel."""
        fraction, provenance = efficiency(self.attention, flops)
        return Estimate(flops / (self.peak * fraction), provenance)

    def moving(self, size: float) -> Estimate:
        """Bytes read or written, with nothing to compute."""
        return Estimate(size / self.bandwidth, Provenance.DERIVED)


def efficiency(points: Sequence[Point], flops: float) -> tuple[float, Provenance]:
    """The fraction of the peak at this many FLOPs; beyond the points, that of the nearest."""
    if not points or flops <= 0:
        return 1.0, Provenance.DERIVED
    for point in points:
        if math.isclose(point.flops, flops, rel_tol=_SAME):
            return point.fraction, _known(Provenance.MEASURED, point)
    if not points[0].flops < flops < points[-1].flops:
        return points[0 if flops < points[0].flops else -1].fraction, Provenance.DERIVED
    low, high = next(two for two in pairwise(points) if two[1].flops > flops)
    way = math.log(flops / low.flops) / math.log(high.flops / low.flops)
    fraction = low.fraction * (high.fraction / low.fraction) ** way
    return fraction, _known(Provenance.INTERPOLATED, low, high)


def _known(provenance: Provenance, *points: Point) -> Provenance:
    return provenance if all(point.is_measured for point in points) else Provenance.DERIVED


def _points(rows: object, name: str) -> tuple[Point, ...]:
    if not isinstance(rows, list | tuple):
        raise InputError(f"{name} is {quoted(rows)}; it must be a list of points")
    return tuple(
        Point(**keyword_arguments(Point, row, f"{name}, point {index}"))
        for index, row in enumerate(rows)
    )


def _check(device: Device) -> None:
    check_positive(device.peak, "peak")
    check_positive(device.bandwidth, "bandwidth", upper=math.inf)
    check_number(device.memory, "memory", upper=math.inf)
    check_count(device.per_node, "per_node", least=1)
    check_text(device.source, "source")
    for name in LINKS:
        check_link(getattr(device, name), name)
    for name in _TABLES:
        _check_table(getattr(device, name), name)


def _check_table(points: tuple[Point, ...], name: str) -> None:
    for index, point in enumerate(points):
        place = f"{name}, point {index}"
        check_positive(point.flops, f"{place}: flops")
        check_positive(point.fraction, f"{place}: fraction")
        if point.fraction > 1:
            raise InputError(f"{place}: fraction is {point.fraction}; 1 is the peak")
        check_flag(point.is_measured, f"{place}: measured")
    if any(low.flops >= high.flops for low, high in pairwise(points)):
        raise InputError(f"{name}: points stand in order of their flops, each once")
