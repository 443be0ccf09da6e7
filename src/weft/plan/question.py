"""A question: what is to be trained, on what, and what of the answer is decided already."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.cost import Cluster, Cost, Storage, Transformer
from weft.cost.checks import check_count
from weft.errors import InputError
from weft.request.values import COUNT, Bundle, OneOf, given
from weft.schedules import REGISTRY, Schedule

MOST_STAGES = 8  # on a device, where a schedule takes any number
RECOMPUTE = ("auto", "none", "selective", "full")
OFFLOAD = ("auto", "none")
OPTIMIZER = ("auto", "shared", "whole")
EFFORT = 6_000_000  # simulated actions


@dataclass(frozen=True, slots=True)
class ScheduleNames:
    """Schedules of the registry: in a tuple, or with commas."""

    words = "names of schedules, like 1f1b,zbv: `weft list` has them"

    def read(self, given: object) -> tuple[str, ...]:
        names = given.split(",") if isinstance(given, str) else given
        if not isinstance(names, tuple | list):
            raise ValueError
        found = [REGISTRY[str(name).strip()] for name in names]
        for schedule in found:
            if schedule.is_asynchronous:
                raise InputError(
                    f"{schedule.name} is asynchronous: it learns something else, so that its time"
                    f" ranks with no other; `weft compare` says what it settles into"
                )
        return tuple(schedule.name for schedule in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices(Bundle):
    """What is decided already; None where the search decides.

    schedule   names; all synchronous ones where there is none
    recompute  "none", "selective", "full", or "auto": as little as makes it fit
    offload    "none", or "auto": where it makes a plan fit
    optimizer  whether copies of a stage share the state of its optimizer ("shared"), or each keeps
               all of it ("whole"); "auto": what is faster and fits
    max_...    the most of each that is tried
    """

    schedule: tuple[str, ...] | None = given(ScheduleNames())
    tensor: int | None = given(COUNT)
    pipeline: int | None = given(COUNT)
    replicas: int | None = given(COUNT)
    experts: int | None = given(COUNT)
    microbatch_size: int | None = given(COUNT)
    stages_per_device: int | None = given(COUNT)
    recompute: str = given(OneOf(RECOMPUTE), "auto")
    offload: str = given(OneOf(OFFLOAD), "auto")
    optimizer: str = given(OneOf(OPTIMIZER), "auto")
    max_tensor: int | None = given(COUNT)
    max_pipeline: int | None = given(COUNT)
    max_microbatch_size: int | None = given(COUNT)
    max_stages_per_device: int = given(COUNT, MOST_STAGES)

    def allows(self, name: str, count: int) -> bool:
        """Whether so much of something may be tried: tensor, pipeline, replicas ..."""
        wanted, most = getattr(self, name), getattr(self, f"max_{name}", None)
        return wanted in (None, count) and (most is None or count <= most)

    @property
    def registry(self) -> list[Schedule]:
        """The schedules to try: the ones named, or all that compute what the model alone would."""
        if self.schedule:
            return [REGISTRY[name] for name in dict.fromkeys(self.schedule)]
        return [schedule for schedule in REGISTRY if not schedule.is_asynchronous]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What should be run?

    model    its microbatch is decided by the search; None where stages were measured
    measured what its stages cost, where they were measured
    layers   of each stage that was measured; without them a stage is not cut
    cluster  what it is trained on
    batch    tokens of a step; microbatches, where stages were measured
    effort   how many actions may be simulated
    """

    model: Transformer | None = None
    measured: Cost | None = None
    layers: tuple[int, ...] = ()
    cluster: Cluster
    batch: int
    storage: Storage = field(default_factory=Storage)
    choices: Choices = field(default_factory=Choices)
    effort: int = EFFORT

    def __post_init__(self) -> None:
        if (self.model is None) == (self.measured is None):
            raise InputError("a question has a model, or stages that were measured: one of them")
        check_count(self.batch, "batch", least=1)
        check_count(self.effort, "effort", least=1)
        if self.model is not None and self.batch % self.model.sequence:
            below = self.batch // self.model.sequence * self.model.sequence
            near = below or self.model.sequence
            raise InputError(
                f"a batch of {self.batch:,} tokens is not a whole number of sequences of"
                f" {self.model.sequence:,}; {near:,} is, or give another"
                f" --sequence"
            )

    @property
    def sequences(self) -> int:
        """Of a batch; of stages that were measured, its microbatches."""
        return self.batch // self.model.sequence if self.model else self.batch
