"""Shelves: what `weft list` has to say of schedules, models and devices."""

from typing import Any

from weft.cli.shelves.devices import SHELF as _DEVICES
from weft.cli.shelves.models import SHELF as _MODELS
from weft.cli.shelves.schedules import SHELF as _SCHEDULES
from weft.cli.shelves.shelf import Shelf

SHELVES: dict[str, Shelf[Any]] = {
    "schedules": _SCHEDULES,
    "models": _MODELS,
    "devices": _DEVICES,
}

__all__ = ["SHELVES", "Shelf"]
