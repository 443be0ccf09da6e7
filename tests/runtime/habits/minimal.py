"""Minimal cases: what is left of a failing case when all that does not matter is taken away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.runtime.habits.case import Case, Model, Plan, Training
from tests.runtime.habits.draws import plans_of
from tests.runtime.habits.grammar import Layer
from weft.ir.kinds import Kind

PLAIN_HABITS = ("Linear", "Identity")


def reduced(case: Case, is_failing: Callable[[Case], bool], most: int = 200) -> Case:
    """The simplest case found that still fails, by one simplification after the other."""
    tried = {case}
    while True:
        for simpler in _simpler(case):
            if simpler in tried:
                continue
            tried.add(simpler)
            if is_failing(simpler):
                case = simpler
                break
            if len(tried) > most:
                return case
        else:
            return case


def features(case: Case) -> frozenset[str]:
    """What is particular about a case: a failing one with fewer explains one with more."""
    model, plan, training = case.model, case.plan, case.training
    found = {layer.habit for layer in model.layers if layer.habit not in PLAIN_HABITS}
    found |= {f"form {layer.form}" for layer in model.layers if layer.form != "tensor"}
    actions, pipes = plan.program.actions, plan.program.placement.pipes
    shown = {
        "split": model.is_split,
        "traced": model.is_traced,
        f"data {model.data}": model.data != "tensor",
        f"loss {model.loss}": model.loss != "squared",
        model.dtype: model.dtype != "float64",
        "same module": any(layer.same_as is not None for layer in model.layers),
        "tied": any(layer.tied_to is not None for layer in model.layers),
        "frozen": any(layer.is_frozen for layer in model.layers),
        "evaluating": any(layer.is_evaluating for layer in model.layers),
        "asynchronous": case.is_asynchronous,
        "graph": plan.graph is not None,
        "several pipes": len(pipes) > 1,
        "I and W": bool((actions.kind == Kind.I).any()),
        "R": bool((actions.kind == Kind.R).any()),
        "no optimizer": training.optimizer == "none",
        "clip": training.clip is not None,
        "evaluate": "evaluate" in training.steps,
        "pile": "pile" in training.steps,
        "cast": training.is_cast,
        "weighted": training.is_weighted,
        "offload": training.offload != "none",
    }
    found |= {f"change {change.what}" for change in training.changes}
    found |= {f"in {one}" for one in (training.precision, training.compress) if one}
    return frozenset(found | {name for name, holds in shown.items() if holds})


def _simpler(case: Case) -> Iterator[Case]:
    """Every case with one thing less, the largest things first."""
    yield replace(case, training=Training(steps=("update",)))
    for model in _single(case.model):
        yield replace(case, model=model)
    for plan in _plans(case.plan):
        yield from _fitted(case, plan)
    for model in (*_fewer(case.model), *_plainer(case.model)):
        yield replace(case, model=model)
    for training in _trainings(case.training):
        yield replace(case, training=training)


# plans


def _plans(plan: Plan) -> Iterator[Plan]:
    for name in plan.passes:
        passes = tuple(one for one in plan.passes if one != name)
        yield replace(plan, passes=passes, only=None)
    if plan.only is not None:
        yield replace(plan, only=None)
    if plan.graph is not None:
        for devices in range(1, plan.devices):
            yield replace(plan, devices=devices)
        for count in range(1, plan.microbatches):
            yield replace(plan, microbatches=count)
        return
    for other in _others(plan):
        if _weight(other) < _weight(plan):
            yield replace(other, passes=plan.passes, only=None)


def _others(plan: Plan) -> Iterator[Plan]:
    """The simplest schedule at some sizes, and all shapes of the same one."""
    for devices in (1, 2, plan.program.stages):
        for count in (1, 2):
            yield Plan("gpipe", devices, count)
    yield from plans_of(plan.schedule)


def _weight(plan: Plan) -> tuple[int, int, int]:
    known = {"gpipe": 0, "1f1b": 1}.get(plan.schedule, 2) + bool(plan.variant)
    return plan.devices * plan.stages_per_device, known, plan.microbatches


def _fitted(case: Case, plan: Plan) -> Iterator[Case]:
    """The case by another plan: its stages joined until they are as many."""
    if "recompute" in plan.variant and any("recompute" in name for name in plan.passes):
        return
    wanted, sizes = plan.program.stages, [*case.model.sizes]
    while len(sizes) > wanted:
        last = sizes.pop()
        sizes[-1] += last
    if len(sizes) == wanted and (plan.graph is not None) == (case.plan.graph is not None):
        yield Case(replace(case.model, sizes=tuple(sizes)), plan, case.training)


# models


def _single(model: Model) -> Iterator[Model]:
    """With one layer as it is, or two that share something, and the others plain."""
    first = model.layers[:1] if model.data == "words" else ()
    for index, layer in enumerate(model.layers):
        kept = {index, layer.same_as, layer.tied_to}
        layers = [
            one if place in kept else Layer("Linear") for place, one in enumerate(model.layers)
        ]
        yield replace(model, layers=(*first, *layers[len(first) :]))


def _fewer(model: Model) -> Iterator[Model]:
    """Without one of the layers of a stage that has several."""
    for index in range(len(model.layers)):
        stage = model.stage_of(index)
        if model.sizes[stage] > 1:
            sizes = tuple(n - (place == stage) for place, n in enumerate(model.sizes))
            yield replace(model, layers=_without(model.layers, index), sizes=sizes)


def _without(layers: tuple[Layer, ...], index: int) -> tuple[Layer, ...]:
    def moved(other: int | None) -> int | None:
        return None if other is None or other == index else other - (other > index)

    return tuple(
        replace(layer, same_as=moved(layer.same_as), tied_to=moved(layer.tied_to))
        for place, layer in enumerate(layers)
        if place != index
    )


def _plainer(model: Model) -> Iterator[Model]:
    if model.data != "words":
        yield replace(model, data="tensor")
    yield replace(model, loss="squared")
    yield replace(model, dtype="float64")
    for index, layer in enumerate(model.layers):
        for simpler in _plainer_layers(layer):
            layers = (*model.layers[:index], simpler, *model.layers[index + 1 :])
            yield replace(model, layers=tuple(_renamed(one, layers) for one in layers))


def _renamed(layer: Layer, layers: tuple[Layer, ...]) -> Layer:
    """The name of a layer that is another one."""
    return layer if layer.same_as is None else replace(layer, habit=layers[layer.same_as].habit)


def _plainer_layers(layer: Layer) -> Iterator[Layer]:
    if layer.form != "tensor":
        yield replace(layer, form="tensor")
    if layer.same_as is not None or layer.tied_to is not None:
        yield replace(layer, same_as=None, tied_to=None)
        return
    if layer.is_frozen or layer.is_evaluating:
        yield replace(layer, is_frozen=False, is_evaluating=False)
    if layer.habit not in PLAIN_HABITS and not layer.habit.startswith("Embedding"):
        yield from (replace(layer, habit=name) for name in PLAIN_HABITS)


# training


def _trainings(training: Training) -> Iterator[Training]:
    yield replace(training, clip=None)
    yield replace(training, is_ragged=False)
    yield replace(training, is_weighted=False)
    yield replace(training, is_cast=False)
    yield replace(training, precision=None)
    yield replace(training, compress=None)
    yield replace(training, offload="none")
    if training.offload != "none":
        yield replace(training, offload="all")
    for change in training.changes:
        yield replace(training, changes=tuple(one for one in training.changes if one != change))
    for index in range(len(training.steps)):
        steps = (*training.steps[:index], *training.steps[index + 1 :])
        if steps:
            yield replace(training, steps=steps)
    if training.optimizer == "adamw":
        yield replace(training, optimizer="momentum")
