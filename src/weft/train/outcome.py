"""Outcomes: what a run gave, step by step and as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import median

from weft.ir.program import Program
from weft.ir.versions import resident_versions, staleness
from weft.timeline import Bubble, Timeline


@dataclass(frozen=True, slots=True)
class Metrics:
    """What one step gave.

    Of an asynchronous step, which ends among the next ones, neither seconds nor bubble are known;
    its norm is that of the first stage's group, and staleness is the most updates that were
    missing in its weights.
    """

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float | None
    tokens_per_second: float
    seconds: float | None  # from the first action's start to the last one's end
    bubble: float | None
    staleness: int = 0


@dataclass(frozen=True)
class Outcome:
    """What a run gave; the measured timeline is that of the step with the median length.

    Of an asynchronous run both timelines have all updates after the warm-up, from fill to drain,
    or the first of them where there are many.
    """

    program: Program  # that was asked for
    metrics: tuple[Metrics, ...]
    predicted: Timeline
    measured: Timeline
    accelerator: str  # on which it was measured, in words

    @property
    def losses(self) -> list[float]:
        return [step.loss for step in self.metrics]

    @property
    def predicted_step(self) -> float:
        """Seconds."""
        return self.predicted.makespan / self.predicted.program.steps

    @cached_property
    def measured_step(self) -> float:
        """Seconds, the median of all steps; of an asynchronous run, the mean."""
        known = [step.seconds for step in self.metrics if step.seconds is not None]
        return median(known) if known else self.measured.makespan / self.measured.program.steps

    @property
    def staleness(self) -> list[int]:
        """For each stage, the most updates that are missing in its weights."""
        return staleness(self.measured.program)

    @property
    def versions(self) -> list[int]:
        """For each stage, how many versions of its weights a device keeps."""
        return resident_versions(self.program)

    @property
    def bubble(self) -> Bubble:
        """Measured, of the step in the middle."""
        return self.measured.bubble

    @property
    def peak_memory(self) -> list[float]:
        """For each device, the most bytes of weights, gradients, optimizer and saved state."""
        return [float(peak) for peak in self.measured.memory.peaks]
