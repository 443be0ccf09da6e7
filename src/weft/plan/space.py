"""The space of a search: layouts with their microbatches, and what may run on each.

Setting     tensor x pipeline x experts x replicas, sequences of a microbatch
Candidate   a setting with a schedule, its variant and stages on a device
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from weft.cost import Layout
from weft.ir.kinds import Kind
from weft.plan.question import Question
from weft.schedules import REGISTRY, Schedule, Shape

_LOOPS = (1, 2, 3, 4, 6, 8, 12, 16)  # stages on a device that are tried
PLAIN = "1f1b"  # which every schedule is like on one device


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How a cluster is divided, and the batch.

    layout           without layers
    devices          of the pipeline
    microbatch_size  sequences of a microbatch
    microbatches     of a step of one pipeline
    """

    layout: Layout
    devices: int
    microbatch_size: int
    microbatches: int

    @property
    def key(self) -> tuple[int, ...]:
        layout = self.layout
        sizes = layout.tensor, self.devices, layout.experts, layout.replicas, self.microbatch_size
        return *sizes, int(layout.is_sharded)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule on a division."""

    division: Division
    schedule: Schedule
    shape: Shape

    @property
    def pipes(self) -> int:
        """Copies of the model on the devices of one pipeline."""
        return self.schedule.claims.weight_copies(self.shape)

    @property
    def key(self) -> tuple[object, ...]:
        """A layout and a schedule, whatever its microbatches, stages and optimizer state."""
        layout = self.division.layout
        return (
            layout.tensor,
            self.division.devices,
            layout.experts,
            layout.replicas,
            self.schedule.name,
            self.shape.variant,
        )

    @property
    def source(self) -> str:
        """How its program was found."""
        is_known = any(one is self.schedule for one in REGISTRY)
        return self.title if is_known else f"{self.title}, {self.schedule.summary}"

    @property
    def title(self) -> str:
        variant = f" ({self.shape.variant})" if self.shape.variant else ""
        return f"{self.schedule.name}{variant}"


@dataclass(frozen=True)
class Space:
    """All that may be tried for a question."""

    question: Question

    @property
    def candidates(self) -> Iterator[Candidate]:
        """Every one of them, division by division."""
        for division in self.divisions:
            yield from self.on(division)

    @property
    def blocks(self) -> int:
        """Blocks of the model, however it is divided: no pipeline has more stages."""
        question = self.question
        if question.model is not None:
            return question.model.layers + 2
        assert question.measured is not None
        layers = question.layers
        has_ends = bool(layers) and 0 in (layers[0], layers[-1])
        return sum(layers) + 2 * has_ends or question.measured.stages

    # devices and batch

    @property
    def divisions(self) -> Iterator[Division]:
        """Every division of the cluster and the batch, tensor parallelism inside a node.

        Copies share the state of the optimizer, unless that was decided otherwise.
        """
        for tensor in self._tensors():
            rest = self.question.cluster.devices // tensor
            for devices in divisors(rest):
                if self._allows("pipeline", devices) and devices <= self.blocks:
                    yield from self._layouts(tensor, devices, rest // devices)

    def _allows(self, name: str, count: int) -> bool:
        return self.question.choices.allows(name, count)

    def _layouts(self, tensor: int, devices: int, copies: int) -> Iterator[Division]:
        """The ways in which copies of a pipeline may share experts, each with its microbatches."""
        is_sharded = self.question.choices.optimizer != "whole"
        for experts in self._experts(tensor, copies):
            replicas = copies // experts
            if not (self._allows("experts", experts) and self._allows("replicas", replicas)):
                continue
            if self.question.sequences % copies:
                continue
            layout = Layout(
                tensor=tensor, experts=experts, replicas=replicas, is_sharded=is_sharded
            )
            for size, count in self._microbatches(self.question.sequences // copies):
                yield Division(
                    layout=layout, devices=devices, microbatch_size=size, microbatches=count
                )

    def with_whole_optimizer(self, candidate: Candidate) -> Candidate | None:
        """The same where every copy keeps all of the optimizer's state; None if it is not tried.

        What was measured with copies is planned as it ran.
        """
        division, measured = candidate.division, self.question.measured
        if self.question.choices.optimizer != "auto" or division.layout.copies == 1:
            return None
        if measured is not None and any(measured.times.reduce):
            return None
        whole = replace(division, layout=replace(division.layout, is_sharded=False))
        return replace(candidate, division=whole)

    def _tensors(self) -> list[int]:
        model, cluster = self.question.model, self.question.cluster
        if model is None:
            return [1]
        node = min(cluster.device.per_node, cluster.devices)
        return [
            count
            for count in divisors(cluster.devices)
            if (count <= node or self.question.choices.tensor == count)
            and self._allows("tensor", count)
            and not (model.heads % count or model.ffn % count)
            and not (model.experts and model.experts % count)
        ]

    def _experts(self, tensor: int, copies: int) -> list[int]:
        model = self.question.model
        if model is None or not model.experts:
            return [1]
        return [count for count in divisors(copies) if model.experts % (count * tensor) == 0]

    def _microbatches(self, sequences: int) -> Iterator[tuple[int, int]]:
        """Sizes and counts of microbatches; what was measured has its size."""
        if self.question.model is None:
            yield 1, sequences
            return
        for size in divisors(sequences):
            if self._allows("microbatch_size", size):
                yield size, sequences // size

    # schedules

    def on(self, division: Division) -> Iterator[Candidate]:
        """What may run on a division."""
        for schedule, variants in self._schedules(division):
            for stages in self._stages_per_device(schedule):
                if stages * division.devices > self.blocks:
                    continue
                for variant in variants:
                    shape = Shape(
                        devices=division.devices,
                        microbatches=division.microbatches,
                        stages_per_device=stages,
                        variant=variant,
                    )
                    if schedule.accepts(shape) is None:
                        yield Candidate(division, schedule, shape)

    def _schedules(self, division: Division) -> list[tuple[Schedule, list[str]]]:
        """One device alone runs all of them alike."""
        plain = [one for one in self._varieties if one[0].name == PLAIN]
        return plain if division.devices == 1 and plain else self._varieties

    @cached_property
    def _varieties(self) -> list[tuple[Schedule, list[str]]]:
        """Schedules with their variants, but those that recompute: the search does that itself."""
        return [
            (schedule, [one for one in ("", *schedule.variants) if not _recomputes(schedule, one)])
            for schedule in self.question.choices.registry
        ]

    def _stages_per_device(self, schedule: Schedule) -> list[int]:
        """One stage on each device is no loop, unless it is asked for."""
        least, most = schedule.stages_per_device
        wanted = self.question.choices.stages_per_device
        if most is not None:
            return [least] if wanted in (None, least) else []
        if wanted is not None:
            return [wanted]
        upper = self.question.choices.max_stages_per_device
        return [count for count in _LOOPS if max(least, 2) <= count <= upper]


def _recomputes(schedule: Schedule, variant: str) -> bool:
    """Whether a variant runs forwards again by itself."""
    shape = Shape(
        devices=2, microbatches=4, stages_per_device=schedule.stages_for(), variant=variant
    )
    if schedule.accepts(shape) is not None:
        return False
    return bool((schedule.program(shape).actions.kind == Kind.R).any())


def divisors(number: int) -> list[int]:
    """All of them, from 1 up."""
    small = [one for one in range(1, int(number**0.5) + 1) if number % one == 0]
    return sorted({*small, *(number // one for one in small)})
