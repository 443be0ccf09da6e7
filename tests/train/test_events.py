"""Events: what TensorBoard reads is what the run gave."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)

from weft.train import Metrics
from weft.train.events import Events

STEPS = [
    Metrics(
        step=step,
        loss=3.5 / step,
        learning_rate=1e-3 * step,
        gradient_norm=0.25,
        tokens_per_second=1e5,
        seconds=0.01 * step,
        bubble=0.125,
    )
    for step in (1, 2, 3)
]


def test_every_figure_of_every_step_reads_back(tmp_path: Path) -> None:
    written = Events(tmp_path, after=0)
    for metrics in STEPS:
        written.add(metrics)
    written.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert sorted(events.Tags()["scalars"]) == [
        "bubble",
        "gradient_norm",
        "learning_rate",
        "loss",
        "seconds",
        "staleness",
        "tokens_per_second",
    ]
    for tag in events.Tags()["scalars"]:
        read = [(event.step, event.value) for event in events.Scalars(tag)]
        given = [(step.step, pytest.approx(getattr(step, tag), rel=1e-6)) for step in STEPS]
        assert read == given
