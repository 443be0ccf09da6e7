"""Measured runs: what the stages of a run of `weft train` took, as a cost to plan with again.

    measured.json     the step of median length, with the profile that it was predicted by
    plan.json         the layers of its stages, where it ran a plan
    settings.toml     replicas and expert ranks, where not

Seconds of every action that ran are those of the step; whatever it had none of stays as profiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.cost import Cost, Layout, PerStage, Times
from weft.errors import InputError
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.notation import read_timeline
from weft.request.plan_file import read_plan
from weft.request.toml import settings_in
from weft.timeline import Timeline

Column: TypeAlias = NDArray[np.float64]  # by stage

BY_KIND = {
    Kind.F: "forward",
    Kind.B: "backward",
    Kind.I: "input_grad",
    Kind.W: "weight_grad",
    Kind.R: "recompute",
    Kind.UPDATE: "update",
    Kind.REDUCE: "reduce",
    Kind.GATHER: "gather",
}


class MeasuredRun(NamedTuple):
    """What a run cost, stage by stage.

    layout   the layers of each stage, and the copies that there were
    program  what ran, with all its copies
    seconds  of a step
    """

    cost: Cost
    layout: Layout
    program: Program
    seconds: float


def measured_of(run: Path) -> MeasuredRun:
    """What is known of the run in a folder; InputError where it has not taken a step."""
    file = run / "measured.json"
    if not file.is_file():
        raise InputError(
            f"{file} does not exist: name the folder of a run of `weft train` that has taken a step"
        )
    timeline = read_timeline(file)
    return MeasuredRun(
        cost=observed(timeline),
        layout=_layout(run, timeline.cost),
        program=timeline.program,
        seconds=timeline.makespan / timeline.program.steps,
    )


def observed(timeline: Timeline) -> Cost:
    """The cost of a timeline with the medians of what its actions took."""
    cost = timeline.cost
    if (timeline.program.actions.segment >= 0).any():
        return cost  # parts of stages, which share their time with other streams
    found = {name: _medians(timeline, kind) for kind, name in BY_KIND.items()}
    measurement = cost.measurement and replace(cost.measurement, spread={})
    return replace(cost, times=_times(cost.times, found), measurement=measurement)


def _medians(timeline: Timeline, kind: Kind) -> Column:
    """Seconds of this kind for an ordinary microbatch, by stage; nan where there is none."""
    actions, cost = timeline.program.actions, timeline.cost
    seconds = (timeline.end - timeline.start) / cost.covered(actions)
    is_own = (actions.kind == kind) & ((kind <= Kind.R) | (actions.edge < 0))
    found = np.full(cost.stages, np.nan)
    for stage in np.unique(actions.stage[is_own]).tolist():
        found[stage] = np.median(seconds[is_own & (actions.stage == stage)])
    return found


def _times(known: Times, found: Mapping[str, Column]) -> Times:
    """What was found; of what did not run by itself, what was known, as much longer or shorter.

    Both gradients go with the whole backward, and what is recomputed with the forward.
    """
    whole = known.backward or tuple(np.add(known.input_grad, known.weight_grad).tolist())
    by_backward = _ratio(found["backward"], whole)
    growth = {
        "input_grad": by_backward,
        "weight_grad": by_backward,
        "recompute": _ratio(found["forward"], known.forward),
    }
    changed: dict[str, PerStage] = {}
    for name, column in found.items():
        if (before := getattr(known, name)) is not None:
            usual = growth.get(name, 1.0) * np.array(before)
            changed[name] = tuple(np.where(np.isfinite(column), column, usual).tolist())
    return replace(known, **changed)


def _ratio(found: Column, known: PerStage) -> Column:
    """How many times as long as known; 1 where nothing was found."""
    before = np.array(known)
    is_known = np.isfinite(found) & (before > 0)
    return np.asarray(np.divide(found, before, out=np.ones_like(before), where=is_known))


# its layers


def _layout(run: Path, cost: Cost) -> Layout:
    """The layers of each stage, and its copies."""
    plan = run / "plan.json"
    if plan.is_file():
        return read_plan(plan).layout
    settings = _settings(run / "settings.toml")
    copies = {"replicas": "replicas", "experts": "expert-ranks"}
    sizes = {} if cost.measurement is None else cost.measurement.model
    layers = settings.get("layers", sizes.get("layers"))
    if layers is None:
        raise InputError(f"{run} does not say how many layers its model has; run it again")
    return Layout(
        layers=even_layers(int(layers), cost.stages),
        is_sharded=bool(settings.get("shard-optimizer", False)),
        **{name: int(settings.get(key, 1)) for name, key in copies.items()},
    )


def even_layers(layers: int, stages: int) -> tuple[int, ...]:
    """The layers of each stage, where nothing says otherwise: the first ones have more.

    Embedding and head have stages of their own if there are two more than layers.
    """
    if stages == layers + 2:
        return (0, *(1,) * layers, 0)
    if stages > layers:
        raise InputError(
            f"{layers} layers on {stages} stages: embedding or head has one of its own, and it is"
            f" not known which; train by a plan, whose file says that (--plan), or with"
            f" {layers + 2} stages, or {layers} at most"
        )
    size, larger = divmod(layers, stages)
    return tuple(size + (stage < larger) for stage in range(stages))


def _settings(file: Path) -> dict[str, Any]:
    try:
        return settings_in(file.read_text(encoding="utf-8"), file)
    except OSError:
        return {}
    except UnicodeDecodeError:
        raise InputError(f"{file} is not TOML, which is text in UTF-8; run it again") from None
