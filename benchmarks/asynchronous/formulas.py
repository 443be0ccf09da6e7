"""How much of the weights and of the activations a device holds, as the papers have it.

In units of a device's share of the weights, P/D, and of a device's share of what a microbatch saves
in the whole model, A/D. A `boundary` is the input of a stage in the latter unit.
"""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """A device of a pipeline that has so many microbatches per update."""

    device: int
    devices: int
    microbatches: int


def versions(schedule: str, place: Place) -> float:
    """Copies of the weights; of WPipe's two groups of stages, the first has two."""
    match schedule:
        case "pipedream":
            return place.devices - place.device
        case "pipedream-2bw":
            return 2.0
        case "wpipe":
            return 1.5
        case _:
            return 1.0


def in_flight(schedule: str, place: Place) -> int:
    """Forwards of a stage whose backward is to come; those of WPipe are of half the size."""
    if schedule == "gpipe":
        return place.microbatches
    behind = place.devices - place.device
    return place.devices + behind if schedule == "wpipe" else behind


def saved(schedule: str, place: Place) -> float:
    """What is saved by all microbatches in flight."""
    return in_flight(schedule, place) * _part(schedule)


def saved_recomputed(schedule: str, place: Place, boundary: float) -> float:
    """Inputs of all microbatches in flight, and all that one of them saves; its input is part."""
    return (in_flight(schedule, place) - 1) * boundary + _part(schedule)


def _part(schedule: str) -> float:
    """Of a device's layers in one stage."""
    return 0.5 if schedule == "wpipe" else 1.0
