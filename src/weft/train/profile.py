"""Profiles of a job: whether a cost is that of its model, and how far it can be trusted."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from weft.cost import Cost, Measurement
from weft.errors import InputError
from weft.runtime.profile.machine import machine
from weft.train.differences import differences
from weft.train.settings import Settings

MOST_SPREAD = 0.05  # interquartile range over median


def check_cost(settings: Settings, cost: Cost) -> None:
    """Refuse the cost of another model or of other stages."""
    if cost.measurement is not None:
        plain = {"experts": 0}  # of what has none, which nobody writes down
        given = {"stages": cost.stages, **plain, **cost.measurement.model}
        here = {"stages": settings.program.stages, **plain, **settings.sizes}
        found = differences(given, here)
        if found:
            raise InputError(
                f"the cost was measured with {', '.join(found)}; run `weft profile` with the"
                " options of this run, or leave out --cost"
            )
    cost.check_fits(settings.program)


def doubts(settings: Settings, cost: Cost) -> Iterator[str]:
    """Why the seconds of a cost may not be those of this run."""
    measurement = cost.measurement
    if measurement is None:
        return
    here = {"device": "CPU", **machine(torch.device(settings.accelerator))}
    if found := differences({"device": "CPU", **measurement.machine}, here):
        yield f"the cost was measured on another machine, with {', '.join(found)}"
    if measurement.ranks != settings.program.devices:
        yield (
            f"the cost was measured with {measurement.ranks} processes at work, this run has"
            f" {settings.program.devices}"
        )


def noise(measurement: Measurement) -> str | None:
    """How much times vary, where some vary too much."""
    spreads = {
        (name, stage): spread
        for name, column in measurement.spread.items()
        for stage, spread in enumerate(column)
    }
    wide = [place for place, spread in spreads.items() if spread > MOST_SPREAD]
    if not wide:
        return None
    name, stage = max(wide, key=spreads.__getitem__)
    cores = int(measurement.machine.get("cores", measurement.ranks))
    is_crowded = measurement.ranks > cores
    why = f"{measurement.ranks} processes share {cores} cores" if is_crowded else "others were busy"
    return (
        f"{len(wide)} of {len(spreads)} times vary by more than {MOST_SPREAD:.0%} (interquartile"
        f" range over median), most of all {name} of stage {stage} by {spreads[name, stage]:.0%}:"
        f" {why}"
    )
