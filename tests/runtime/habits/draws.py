"""Draws: a case for every number.

A case is drawn from its number alone and not choice by choice from hypothesis, whose next example
is mostly the last one with a change: here the next one is another composition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from random import Random

from hypothesis import strategies as st
from torch import nn

from tests.runtime.habits.between import CHANGES, Change
from tests.runtime.habits.case import GRAPHS, LOSSES, Case, Model, Plan, Training
from tests.runtime.habits.forms import DATA, FORMS
from tests.runtime.habits.grammar import HABITS, WORD_HABITS, Layer, line_of
from weft.schedules import REGISTRY, Schedule
from weft.verify import verify

NUMBERS = 2**40
MOST_STAGES = 6
MOST_MICROBATCHES = 8
EXTRA_LAYERS = 3

ORDINARY = ("Linear", "Tanh", "LayerNorm", "Residual")
CONTINUOUS = tuple(name for name, habit in HABITS.items() if not habit.is_steep)
PASSES: tuple[tuple[str, ...], ...] = (
    ("split",),
    ("split late",),
    ("recompute",),
    ("recompute early",),
    ("recompute some",),
    ("split", "recompute"),
)
STEPS: tuple[tuple[str, ...], ...] = (
    ("update",),
    ("update", "update"),
    ("pile", "update"),
    ("update", "pile"),
    ("update", "evaluate", "update"),
    ("evaluate", "update"),
    ("update", "pile", "update"),
)


def drawn(number: int) -> Case:
    """Of every schedule; now and then of a graph, or of an asynchronous one."""
    random = Random(number)
    kind = random.choices(("chain", "graph", "asynchronous"), (8, 1, 1))[0]
    plan = {"chain": _chain, "graph": _graph, "asynchronous": _asynchronous}[kind](random)
    model = _traced(Random(-number), _model(random, plan))
    training = _training(random, model, is_asynchronous=kind == "asynchronous")
    if kind != "asynchronous" and not model.is_traced:
        training = _changed(Random(~number << 1), model, training)
    return Case(model, plan, _rounded(Random(~number << 2), model, training))


def cases() -> st.SearchStrategy[Case]:
    return st.integers(0, NUMBERS).map(drawn)


def _happens(random: Random, share: float) -> bool:
    return random.random() < share


# plans


def _chain(random: Random) -> Plan:
    names = [schedule.name for schedule in REGISTRY if not schedule.is_asynchronous]
    plan = random.choice(plans_of(random.choice(names)))
    return _passed(random, plan) if _happens(random, 0.4) else plan


def _graph(random: Random) -> Plan:
    plan = Plan(
        random.choice(("gpipe", "1f1b")),
        devices=random.randint(1, 3),
        microbatches=random.randint(1, 4),
        graph=random.choice([*GRAPHS]),
    )
    return _passed(random, plan) if _happens(random, 0.4) else plan


def _asynchronous(random: Random) -> Plan:
    names = [schedule.name for schedule in REGISTRY if schedule.is_asynchronous]
    plan = random.choice(plans_of(random.choice(names)))
    return replace(plan, passes=("recompute",)) if _happens(random, 0.3) else plan


def _passed(random: Random, plan: Plan) -> Plan:
    """Split, recomputed or both, all stages or some."""
    passes = random.choice(PASSES)
    if "recompute" in plan.variant:
        passes = tuple(name for name in passes if "recompute" not in name)
    stages = plan.program.stages
    some = tuple(sorted(random.sample(range(stages), random.randint(1, stages))))
    is_whole = _happens(random, 0.5) or not any("recompute" in name for name in passes)
    return replace(plan, passes=passes, only=None if is_whole else some)


@cache
def plans_of(name: str) -> list[Plan]:
    """All small shapes of a schedule and its variants."""
    schedule = REGISTRY[name]
    plans = [
        Plan(name, devices, microbatches, stages_per_device, variant)
        for devices in (1, 2, 3, 4)
        for microbatches in range(1, min(MOST_MICROBATCHES, max(4, 2 * devices)) + 1)
        for stages_per_device in range(1, MOST_STAGES // devices + 1)
        for variant in ("", *schedule.variants)
    ]
    return [plan for plan in plans if _is_accepted(schedule, plan)]


def _is_accepted(schedule: Schedule, plan: Plan) -> bool:
    return schedule.accepts(plan.shape) is None and not verify(plan.program).findings


# models


def _model(random: Random, plan: Plan) -> Model:
    stages = plan.program.stages
    extra = random.choices(range(stages), k=random.randint(0, EXTRA_LAYERS))
    sizes = tuple(1 + extra.count(stage) for stage in range(stages))
    dtype = random.choices(("float64", "float32"), (4, 1))[0]
    data = random.choice(DATA) if _happens(random, 0.3) else "tensor"
    is_worded = plan.graph != "towers" and _happens(random, 0.1)  # they begin twice
    first = random.choice([*WORD_HABITS]) if is_worded else None
    layers = [Layer(first)] if first else []
    habits = [*HABITS] if dtype == "float64" else [*CONTINUOUS]
    while len(layers) < sum(sizes):
        layers.append(_layer(random, habits, layers))
    return Model(
        tuple(layers),
        sizes,
        is_split=plan.graph is None and _happens(random, 0.5),
        data="words" if first else data,
        loss=random.choice(LOSSES) if _happens(random, 0.4) else "squared",
        dtype=dtype,
    )


def _traced(random: Random, model: Model) -> Model:
    """Now and then traced, where its batch is one argument.

    Not with expanded values, which a change in place refuses where nothing is cut.
    """
    is_single = model.is_split and model.data in ("tensor", "words")
    is_plain = all(layer.form != "expanded" for layer in model.layers)
    return replace(model, is_traced=is_single and is_plain and _happens(random, 0.3))


def _layer(random: Random, habits: Sequence[str], before: Sequence[Layer]) -> Layer:
    form = random.choice([*FORMS]) if _happens(random, 0.3) else "tensor"
    own = [index for index, one in enumerate(before) if _is_own(one)]
    same = random.choice(own) if own and _happens(random, 0.05) else None
    if same is not None and not (HABITS[before[same].habit].is_alone and _happens(random, 0.8)):
        return Layer(before[same].habit, form, same_as=same)
    habit = random.choice(habits if _happens(random, 0.6) else ORDINARY)
    if HABITS[habit].is_rare and _happens(random, 0.9):
        habit = "Linear"
    tied = [index for index in own if before[index].habit in tieable()]
    is_tied = bool(tied) and habit in tieable() and _happens(random, 0.15)
    return Layer(
        habit,
        form,
        tied_to=random.choice(tied) if is_tied else None,
        is_frozen=_happens(random, 0.1),
        is_evaluating=_happens(random, 0.07),
    )


def _is_own(layer: Layer) -> bool:
    return layer.same_as is None and layer.habit in HABITS


@cache
def tieable() -> frozenset[str]:
    """The habits with a linear layer whose weight is a plain parameter."""
    return frozenset(name for name, habit in HABITS.items() if _has_line(habit.make()))


def _has_line(module: nn.Module) -> bool:
    if not isinstance(module, nn.Linear) and not hasattr(module, "line"):
        return False
    return "weight" in line_of(module)._parameters


# training


def _training(random: Random, model: Model, *, is_asynchronous: bool) -> Training:
    optimizers = ("momentum", "adamw") if is_asynchronous else ("momentum", "adamw", "none")
    return Training(
        optimizer=random.choice(optimizers),
        clip=0.5 if _happens(random, 0.3) else None,
        steps=("update",) * random.randint(2, 5) if is_asynchronous else random.choice(STEPS),
        is_ragged=_happens(random, 0.5),
        is_weighted=_happens(random, 0.25),
        is_cast=model.dtype == "float32" and _happens(random, 0.5),
        offload=random.choice(("all", "auto", 0.5)) if _happens(random, 0.25) else "none",
    )


def _changed(random: Random, model: Model, training: Training) -> Training:
    """Now and then a user does something to layers between steps, of which no other has a part."""
    shared = {layer.same_as for layer in model.layers} | {layer.tied_to for layer in model.layers}
    own = [
        index
        for index, layer in enumerate(model.layers)
        if index not in shared and layer.same_as is None and layer.tied_to is None
    ]
    if not own or not _happens(random, 0.25):
        return training
    changes = [
        Change(random.randrange(len(training.steps)), random.choice([*CHANGES]), random.choice(own))
        for _ in range(random.randint(1, 3))
    ]
    return replace(training, changes=tuple(changes))


def _rounded(random: Random, model: Model, training: Training) -> Training:
    """Now and then stages compute in another type, or values travel in one."""
    if model.dtype != "float32" or training.is_cast:
        return training
    return replace(
        training,
        precision=random.choice(("bf16", "autocast")) if _happens(random, 0.3) else None,
        compress=random.choice(("bf16", "fp16", "fp8")) if _happens(random, 0.3) else None,
    )
