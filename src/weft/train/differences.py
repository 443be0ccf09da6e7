"""Differences: what two descriptions of a run say differently, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def differences(given: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What two descriptions say differently, as in `hidden 64 instead of 128`."""
    return [
        f"{name} {_shown(given[name])} instead of {_shown(here[name])}"
        for name in given
        if name in here and given[name] != here[name]
    ]


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
