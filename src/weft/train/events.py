"""Events: the metrics of a run as TensorBoard reads them, where its package is installed.

A tag is a key of metrics.jsonl. The package is imported when the first step is written, not before.
"""

from __future__ import annotations

from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from weft.train.outcome import Metrics

PACKAGES = ("tensorboard", "torch.utils.tensorboard")


def can_write_events() -> bool:
    """Whether the package that writes events is installed."""
    return all(find_spec(name) is not None for name in PACKAGES)


class Events:
    """A file of events: every figure of every step, there for TensorBoard as soon as it is known.

    What earlier files of the folder have of later steps than `after` is hidden.
    """

    def __init__(self, folder: Path, *, after: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        is_first = next(folder.glob("events.out.tfevents.*"), None) is None
        self._writer = SummaryWriter(str(folder), purge_step=None if is_first else after + 1)

    def add(self, metrics: Metrics) -> None:
        figures = asdict(metrics)
        step = figures.pop("step")
        for tag, value in figures.items():
            if value is not None:
                self._writer.add_scalar(tag, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
