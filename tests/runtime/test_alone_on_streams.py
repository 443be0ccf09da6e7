"""All devices in one process, on a GPU: what runs beside the computation has streams of its own."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from tests.runtime.exactness import differences
from tests.runtime.fake_device import FakeDevice
from tests.runtime.models import WIDTH, batches, linear
from weft.cost import Share
from weft.ir.program import Program
from weft.lower import experts, offload
from weft.runtime.lane import lanes
from weft.schedules import one_f_one_b
from weft.simulate import simulate

PLAIN = one_f_one_b(devices=2, microbatches=4)
CASES = {
    "offload": (offload(simulate(PLAIN, Share().cost(PLAIN))), {"compute", "offload", "onload"}),
    "experts": (experts(PLAIN), {"compute", "experts"}),
    "nothing": (PLAIN, {"compute"}),
}


def segmented() -> list[nn.Module]:
    return [
        nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        )
        for _ in range(2)
    ]


@pytest.mark.parametrize(("program", "streams"), CASES.values(), ids=CASES)
def test_work_beside_the_computation_is_launched_on_streams(
    monkeypatch: pytest.MonkeyPatch, program: Program, streams: set[str]
) -> None:
    device: Any = FakeDevice()
    monkeypatch.setattr(lanes, "accelerator_of", lambda _: device)
    modules = segmented() if "experts" in streams else linear(2)
    assert not differences(modules, program, batches(8, 2))
    assert streams <= {*device._streams}
    assert len(streams) > 1 or {*device._streams} == streams  # all in turn
