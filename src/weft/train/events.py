"""Events: the metrics of a run as TensorBoard reads them, where its package is installed.

A tag is a key of metrics.jsonl. The package is looked for when a run is written, not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from weft.train.outcome import Metrics


def can_write_events() -> bool:
    """Whether the package that writes events is installed."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        return False
    return True


def write_events(folder: Path, metrics: Sequence[Metrics]) -> None:
    """Write a file of events: every figure of every step."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for figures in map(asdict, metrics):
            step = figures.pop("step")
            for tag, value in figures.items():
                if value is not None:
                    writer.add_scalar(tag, value, step)
