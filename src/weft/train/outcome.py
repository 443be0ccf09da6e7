"""Outcomes: what a run gives, step by step as it goes on, and as a whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import NamedTuple, TypeAlias

from weft.ir.program import Program
from weft.ir.versions import resident_versions, staleness
from weft.request import PlanFile
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


class Saved(NamedTuple):
    """A run can go on after this many steps, whatever happens to it."""

    step: int


class Notice(NamedTuple):
    """What whoever started a run should know."""

    text: str


@dataclass(frozen=True)
class Outcome:
    """What a run has given; the measured timeline is that of the step with the median length.

    Of an asynchronous run both timelines have the updates between two drains, from fill to drain,
    or the first of them where there are many. Where nothing could be measured yet, both are
    predicted. A run that was resumed has the metrics of its own steps.
    """

    program: Program  # that was asked for
    metrics: tuple[Metrics, ...]
    predicted: Timeline
    measured: Timeline
    accelerator: str  # on which it was measured, in words
    after: int = 0  # steps that were taken before it was resumed
    ended_by: int | None = None  # the signal that ended it early
    planned: PlanFile | None = None  # the plan that was run

    @property
    def losses(self) -> list[float]:
        """The loss of every step."""
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

    @property
    def timelines(self) -> dict[str, Timeline]:
        """By name, without what was not measured."""
        found = {"predicted": self.predicted, "measured": self.measured}
        return {name: one for name, one in found.items() if name != "measured" or one.is_measured}


News: TypeAlias = Metrics | Saved | Notice | Outcome  # of a run that goes on
Watch: TypeAlias = Callable[[News], None]
