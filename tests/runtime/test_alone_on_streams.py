"""All devices in one process, on a GPU: what runs beside the computation has streams of its own."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from tests.runtime.exactness import differences
from tests.runtime.fake_device import FakeDevice
from tests.runtime.models import WIDTH, batches, linear, squared
from weft.cost import Share
from weft.errors import WeftError
from weft.ir.program import Program
from weft.lower import experts, offload
from weft.runtime import Pipeline
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


class Failing(nn.Linear):
    """Fails at its second microbatch."""

    calls = 0

    def forward(self, value: Any) -> Any:
        self.calls += 1
        if self.calls == 2:
            raise ValueError("no")
        return super().forward(value)


def test_after_a_step_that_failed_nothing_of_it_is_left_on_other_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They may write to memory that the next step is given."""
    device: Any = FakeDevice()
    monkeypatch.setattr(lanes, "accelerator_of", lambda _: device)
    program, _ = CASES["offload"]
    ((batch, target),) = batches(8, 1)
    pipeline = Pipeline([*linear(1), Failing(WIDTH, WIDTH)], program, loss=squared)
    with pytest.raises(WeftError, match="no"):
        pipeline.step(batch, target, update=False)
    waits = [entry for entry in device.stream("compute").launches if isinstance(entry, tuple)]
    for name, stream in device._streams.items():
        if stream.launches and name != "compute":
            assert (stream, len(stream.launches)) in waits, f"compute waits for all of {name}"
    assert len(device._streams["offload"].launches) > 0
