"""Devices: what they can do, and how far that was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from weft.cli.listings.listing import Listing
from weft.cost import DEVICES, Device, Link, Point, device_named
from weft.cost.units import BYTES, SECONDS, Unit, fitting
from weft.draw.caption import percent
from weft.notation.json.descriptions import device_object

_RATES = (Unit("TFLOP/s", 1e12), Unit("GFLOP/s", 1e9))
_BANDWIDTHS = (Unit("TB/s", 1e12), Unit("GB/s", 1e9), Unit("MB/s", 1e6))


def _row(name: str, device: Device) -> tuple[str, ...]:
    return name, _peak(device), _memory(device), device.source


def _title(name: str, device: Device) -> str:
    return f"{name}: {_peak(device)}, memory {_memory(device)}"


def _details(name: str, device: Device) -> Iterator[tuple[str, str]]:
    yield "products", _reached(device.matmul)
    yield "attention", _reached(device.attention)
    yield "memory", f"{_memory(device)}, {_bandwidth(device.bandwidth)}"
    yield "host", _link(device.host)
    if device.per_node > 1:
        yield "near", f"{_link(device.near)}, between the {device.per_node} of a node"
    yield "far", f"{_link(device.far)}, between nodes"
    yield "source", device.source
    yield "try", f"weft simulate 1f1b -d 8 -n 24 --model gpt-6.2b --device {name}"


def _peak(device: Device) -> str:
    return fitting(device.peak, _RATES).amount(device.peak)


def _memory(device: Device) -> str:
    if math.isinf(device.memory):
        return "no limit"
    return fitting(device.memory, BYTES).amount(device.memory)


def _bandwidth(value: float) -> str:
    return "no limit" if math.isinf(value) else fitting(value, _BANDWIDTHS).amount(value)


def _link(link: Link) -> str:
    latency = fitting(link.latency, SECONDS).amount(link.latency)
    return _bandwidth(link.bandwidth) + (f" after {latency}" if link.latency else "")


def _reached(points: Sequence[Point]) -> str:
    """What part of the peak, at which size, and how that is known."""
    if not points:
        return "as fast as the peak"
    fractions = sorted({percent(point.fraction) for point in points})
    ends = (
        f"{percent(min(p.fraction for p in points))} to {percent(max(p.fraction for p in points))}"
    )
    reached = fractions[0] if len(fractions) == 1 else ends
    is_measured = all(point.is_measured for point in points)
    return f"{reached} of the peak, {'measured' if is_measured else 'as published'}"


def _described(name: str, device: Device) -> dict[str, object]:
    return {"name": name, "device": device_object(device)}


LISTING = Listing(
    entries=DEVICES,
    find=device_named,
    columns=("device", "peak", "memory", "source"),
    row=_row,
    title=_title,
    details=_details,
    described=_described,
    footer="All about one: weft list devices NAME",
)
