"""Asynchronous training in real processes: bitwise the reference, over either transport."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.runtime.asynchrony import Asked, differences, named
from tests.runtime.ranks import TRANSPORTS, run
from weft.runtime import Scale

# A case by name, and what is asked of it.
REPRESENTATIVE: dict[int, list[tuple[str, dict[str, Any]]]] = {
    2: [
        ("pipedream-2x1", {"clip": 0.05}),
        ("naive-async-2x1", {}),
        ("pipedream-2bw-2x1", {"clip": 0.05, "drains": (1,)}),
        ("pipedream-2bw-2x2", {"model": "tied", "clip": 0.05}),
        ("wpipe-2x2r2", {"model": "ragged"}),
        ("wpipe-2x2r2", {"model": "tied", "clip": 0.05, "scope": "stage"}),
        ("wpipe-2x4r2", {"asked": Asked(precision=torch.float16, scale=Scale(2.0**22, 2))}),
    ],
    4: [
        ("pipedream-4x1", {"drains": (2, 3)}),
        ("pipedream-vertical-sync-4x1", {"model": "tied", "clip": 0.05}),
        ("pipedream-2bw-4x3", {"clip": 0.05, "drains": (2,)}),
        ("pipedream-2bw-fresh-4x8", {"clip": 0.05}),
        ("pipedream-2bw-eager-4x8", {"is_recomputed": True}),
        ("pipedream-2bw-4x4", {"asked": Asked(predict=True, temper=4, warmup=2)}),
        ("wpipe-4x3r3", {"clip": 0.05, "drains": (1, 2)}),
        ("wpipe-4x8r4", {"model": "tied", "clip": 0.05}),
        ("wpipe-4x4r4", {"model": "tied", "clip": 0.05, "scope": "stage"}),
        ("wpipe-fresh-4x8r4", {"model": "normed"}),
        ("wpipe-eager-4x8r8", {"is_recomputed": True, "clip": 0.05}),
    ],
}


def train(devices: int) -> dict[str, list[str]]:
    """In each rank: what differs, by case; nothing where all is equal."""
    found = {}
    for index, (name, settings) in enumerate(REPRESENTATIVE[devices]):
        transport = TRANSPORTS[index % 2]
        updates = 14 if "asked" in settings and settings["asked"].scale else 6
        differs = differences(named(name), transport=transport, updates=updates, **settings)
        if differs:
            found[f"{name} {settings} over {transport}"] = differs
    return found


@pytest.mark.parametrize("devices", [2, 4])
def test_representative_cases(devices: int) -> None:
    """Over the transports in turn, each of which has drains, ties and asynchrony of every sort."""
    assert run(devices, train, devices) == [{}] * devices
