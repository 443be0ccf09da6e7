"""Every schedule keeps what it claims: time, peak, weight copies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from weft.cost import Share
from weft.schedules import REGISTRY, Schedule, Shape
from weft.simulate import simulate

SHARES = [
    Share(1, 1, 1),
    Share(1, 0.5, 0.5),
    Share(10, 10, 7),
    Share(10, 11, 9),
    Share(10, 8, 5),
]


def _shapes(schedule: Schedule) -> Iterator[Shape]:
    least, most = schedule.stages_per_device
    for devices in (1, 2, 3, 4, 5, 6, 8):
        for microbatches in (1, 2, 3, 4, 7, 8, 9, 12, 16, 17, 24):
            for stages_per_device in {least, most or 3}:
                for pipes in {1, 2 if schedule.takes_pipes else 1}:
                    for variant in ("", *schedule.variants):
                        shape = Shape(
                            devices=devices,
                            microbatches=microbatches,
                            stages_per_device=stages_per_device,
                            pipes=pipes,
                            variant=variant,
                        )
                        if schedule.accepts(shape) is None:
                            yield shape


@pytest.mark.parametrize("schedule", list(REGISTRY), ids=lambda schedule: schedule.name)
def test_claims_hold(schedule: Schedule) -> None:
    claims = schedule.claims
    for shape in _shapes(schedule):
        shares = [share for share in SHARES if claims.holds(shape, share)]
        if not shares:
            continue
        program = schedule.program(shape).unrolled()
        assert program.placement.weight_copies == claims.weight_copies(shape)
        peaks = [claims.peak(shape, device) for device in range(shape.devices)]
        for share in shares:
            timeline = simulate(program, share.cost(program))
            spans = timeline.device_spans.max()
            seconds = timeline.makespan if claims.measure == "wall" else float(spans)
            assert seconds == pytest.approx(claims.seconds(shape, share)), (shape, share)
            assert timeline.peak_activations == pytest.approx(peaks), (shape, share)


@pytest.mark.parametrize("schedule", list(REGISTRY), ids=lambda schedule: schedule.name)
def test_every_claim_is_tried(schedule: Schedule) -> None:
    """A condition under which a claim never holds would make the test above empty."""
    tried = [shape for shape in _shapes(schedule) if schedule.claims.holds(shape, Share())]
    assert len(tried) >= 10
