"""A case: a model, a plan to run it by and how it is trained, all of it data.

Its repr is Python: pasted into a test or a shell, it is the case again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.runtime.habits.between import Change
from tests.runtime.habits.forms import FORMS
from tests.runtime.habits.grammar import Layer, built
from tests.runtime.habits.short import Short
from tests.runtime.habits.size import LENGTH, WIDTH, WORDS
from tests.runtime.habits.where import here
from weft.ir.graph import Graph, Stage
from weft.ir.kinds import Kind
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.lower import recompute, recompute_early, split, split_late, unpaired
from weft.schedules import REGISTRY, Shape

Forms: TypeAlias = tuple[str, ...]

GRAPHS = {
    "fork": Graph((Stage(),) * 4, ((0, 1), (0, 2), (1, 3), (2, 3))),
    "skip": Graph((Stage(),) * 4, ((0, 1), (0, 3), (1, 2), (2, 3))),
    "towers": Graph((Stage(),) * 3, ((0, 2), (1, 2))),
    "three readers": Graph((Stage(),) * 5, ((0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4))),
}


@dataclass(frozen=True, slots=True, repr=False)
class Model(Short):
    """Layers and their cut into stages.

    sizes     layers of each stage
    is_split  whether `weft.split` cuts a Sequential of them; else the stages are given as a list
    is_traced whether it traces them instead
    data      the form of a batch, or "words"
    """

    layers: tuple[Layer, ...]
    sizes: tuple[int, ...]
    is_split: bool = True
    data: str = "tensor"
    loss: str = "squared"
    dtype: str = "float64"
    is_traced: bool = False

    @property
    def starts(self) -> list[int]:
        """The first layer of each stage."""
        return [sum(self.sizes[:stage]) for stage in range(len(self.sizes))]

    def stage_of(self, layer: int) -> int:
        return max(stage for stage, start in enumerate(self.starts) if start <= layer)


@dataclass(frozen=True, slots=True, repr=False)
class Plan(Short):
    """A program.

    passes  what is done to it, of "split", "split late", "recompute", "recompute early" and
            "recompute some": every second microbatch
    only    the stages that are recomputed; all unless given
    graph   of GRAPHS, where the stages are no chain; then each has a device of its own
    """

    schedule: str
    devices: int
    microbatches: int
    stages_per_device: int = 1
    variant: str = ""
    passes: tuple[str, ...] = ()
    only: tuple[int, ...] | None = None
    graph: str | None = None

    @property
    def program(self) -> Program:
        return _program(self)

    @property
    def shape(self) -> Shape:
        if self.graph is not None:
            graph = GRAPHS[self.graph]
            placed = Placement((tuple(stage % self.devices for stage in range(len(graph))),))
            return Shape.of_graph(graph, placed, microbatches=self.microbatches)
        schedule = REGISTRY[self.schedule]
        return Shape(
            devices=self.devices,
            microbatches=self.microbatches,
            stages_per_device=self.stages_per_device,
            variant=self.variant,
            round=self.devices if schedule.takes_round else 0,
            updates=2 * self.devices + 2 if schedule.is_asynchronous else 4,
        )


@lru_cache(maxsize=4096)
def _program(plan: Plan) -> Program:
    made = REGISTRY[plan.schedule].program(plan.shape)
    changes: dict[str, Callable[[Program], Program]] = {
        "split": split,
        "split late": lambda program: split_late(program, late=[*range(program.devices)]),
        "recompute": lambda program: recompute(program, stages=plan.only),
        "recompute early": lambda program: recompute_early(program, stages=plan.only),
        "recompute some": lambda program: _recomputed_in_part(program, plan.only),
    }
    for name in plan.passes:
        made = changes[name](made)
    return made


def _recomputed_in_part(program: Program, stages: tuple[int, ...] | None) -> Program:
    whole = unpaired(recompute_early(program, stages=stages))
    lanes = {}
    for lane, actions in whole.contents().items():
        is_left_out = (actions.kind == Kind.R) & (actions.microbatch % 2 == 1)
        lanes[lane] = actions.take(np.flatnonzero(~is_left_out))
    return whole.with_lanes(lanes)


@dataclass(frozen=True, slots=True, repr=False)
class Training(Short):
    """What is done with the model.

    steps        each of "update", "pile" (gradients are added to, nothing is updated), "evaluate"
    is_ragged    whether the last microbatch is shorter
    is_weighted  whether microbatches count differently
    is_cast      whether every step runs under autocast
    offload      how much of what forwards keep is on the host until their backwards
    changes      what is done to layers between steps, where they are
    precision    in which stages compute, and compress: in which values travel; what plain torch
                 gives is no measure of these
    """

    optimizer: str = "momentum"
    clip: float | None = None
    steps: tuple[str, ...] = ("update", "update")
    is_ragged: bool = False
    is_weighted: bool = False
    is_cast: bool = False
    offload: str | float = "none"
    changes: tuple[Change, ...] = ()
    precision: str | None = None
    compress: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Case(Short):
    """A composition."""

    model: Model
    plan: Plan
    training: Training = Training()

    @property
    def is_asynchronous(self) -> bool:
        return REGISTRY[self.plan.schedule].is_asynchronous

    @property
    def is_recomputed(self) -> bool:
        return any("recompute" in name for name in (*self.plan.passes, self.plan.variant))

    def sources(self) -> list[Forms]:
        """The forms that each layer reads."""
        model, graph = self.model, self.plan.graph
        found: list[Forms] = [(layer.form,) for layer in model.layers[:-1]]
        found.insert(0, (model.data,))
        if graph is not None:
            for stage, before in enumerate(GRAPHS[graph].predecessors):
                ends = [model.starts[other] + model.sizes[other] - 1 for other in before]
                forms = tuple(model.layers[end].form for end in ends)
                found[model.starts[stage]] = forms or (model.data,)
        return found

    def modules(self) -> list[nn.Module]:
        """One for each layer."""
        return built(self.model.layers, self.sources(), getattr(torch, self.model.dtype))

    @property
    def paths(self) -> list[str]:
        """The name of each layer in the unsplit model."""
        model = self.model
        if model.is_split:
            return [*map(str, range(len(model.layers)))]
        return [
            str(stage) if size == 1 else f"{stage}.layers.{place}"
            for stage, size in enumerate(model.sizes)
            for place in range(size)
        ]

    @property
    def microbatches(self) -> int:
        """Of a step, which may be an update for each."""
        return self.plan.program.microbatches

    @property
    def rows(self) -> int:
        count = self.microbatches
        return 3 * count - 1 if self.training.is_ragged else 2 * count

    @property
    def weights(self) -> list[float] | None:
        if not self.training.is_weighted:
            return None
        return [1 / (2 + microbatch) for microbatch in range(self.microbatches)]

    def batch(self, step: int) -> tuple[Any, Any]:
        """The batch and the target of a step; every call makes them anew."""
        generator = torch.Generator().manual_seed(100 + step)
        dtype, size = getattr(torch, self.model.dtype), (self.rows, LENGTH, WIDTH)
        draw = partial(torch.randn, size, generator=generator, dtype=torch.float64, device="cpu")
        value, target = (draw().to(here(), dtype) for _ in range(2))
        if self.model.data == "words":
            words = torch.randint(WORDS, size[:2], generator=generator, device="cpu")
            return words.to(here()), target
        batch = FORMS[self.model.data].wrap(value, value)
        return batch, (target, 0.5 * target) if self.model.loss == "two targets" else target

    def loss(self) -> Loss:
        return Loss(self.model.loss, self.model.layers[-1].form)


class Loss:
    """Reads all that the last layer gives."""

    def __init__(self, kind: str, form: str) -> None:
        self._kind, self._form = kind, form

    def __call__(self, output: Any, *targets: Tensor) -> Tensor:
        value = FORMS[self._form].read(output)
        if self._kind == "noisy":
            value = functional.dropout(value, 0.3)
        found = sum(_squared(value, target) for target in targets)
        assert isinstance(found, Tensor)
        return found.reshape(1) if self._kind == "one element" else found


LOSSES = ("squared", "noisy", "one element", "two targets")


def _squared(value: Tensor, target: Tensor) -> Tensor:
    """Of rows, or of their mean where the layers have changed how many there are."""
    wanted = target if value.shape == target.shape else target.mean(0, keepdim=True)
    return ((value - wanted) ** 2).mean()
