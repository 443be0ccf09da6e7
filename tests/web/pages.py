"""Timelines for pages, and the data of a page as Python reads it back."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.cost import Share
from weft.ir.program import Program
from weft.schedules import interleaved_1f1b, one_f_one_b, zbv
from weft.simulate import simulate
from weft.timeline import Timeline

SMALL = simulate(one_f_one_b(devices=4, microbatches=8))
OTHER = simulate(zbv(devices=4, microbatches=8))


def measured(timeline: Timeline) -> Timeline:
    """As if it had been run, a little slower."""
    return replace(timeline, start=timeline.start * 1.1, end=timeline.end * 1.1, is_measured=True)


def with_latency(program: Program) -> Timeline:
    return simulate(program, Share(latency=0.5).cost(program))


def large(devices: int, microbatches: int, stages_per_device: int) -> Timeline:
    program = interleaved_1f1b(
        devices=devices, microbatches=microbatches, stages_per_device=stages_per_device
    )
    return simulate(program)


def content(page: str) -> Any:
    """The data inside a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found
    return json.loads(found[1])


def unpacked(column: dict[str, Any]) -> NDArray[Any]:
    """The array that a page unpacks."""
    if "all" in column:
        return np.full(column["count"], column["all"], column["type"])
    return np.frombuffer(base64.b64decode(column["base64"]), f"<{column['type']}")
