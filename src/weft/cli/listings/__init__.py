"""Listings: what `weft list` has to say of schedules, models and devices."""

from typing import Any

from weft.cli.listings.devices import LISTING as _DEVICES
from weft.cli.listings.listing import Listing
from weft.cli.listings.models import LISTING as _MODELS
from weft.cli.listings.schedules import LISTING as _SCHEDULES

LISTINGS: dict[str, Listing[Any]] = {
    "schedules": _SCHEDULES,
    "models": _MODELS,
    "devices": _DEVICES,
}

__all__ = ["LISTINGS", "Listing"]
