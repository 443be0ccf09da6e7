"""Given: what is easily given in the place of what a pipeline takes, refused with the way to it."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

from torch import nn

from weft.errors import InputError
from weft.ir.program import Program

REMEDIES = {
    "loss": ("of outputs and targets", ""),
    "optimizer": (
        "that makes the optimizer of each stage",
        ": lambda named: torch.optim.AdamW([weight for name, weight in named])",
    ),
    "scheduler": (
        "that makes the scheduler of each optimizer",
        ": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 100)",
    ),
}


def check_given(stages: Any, program: Any, loss: Any, **factories: Any) -> None:
    """Refuse a schedule for a program, a model for its stages, and what cannot be called."""
    check_program(program)
    if isinstance(stages, nn.Module) and not isinstance(stages, nn.Sequential | nn.ModuleList):
        raise InputError(
            f"a pipeline takes the stages of a model, and {type(stages).__name__} is one module:"
            f" cut it with weft.split(model, stages={program.stages}, example=batch)"
        )
    if isinstance(loss, type):
        raise InputError(
            f"loss= is called with outputs and targets, and {loss.__name__} is a class: make one,"
            f" {loss.__name__}()"
        )
    for name, one in {"loss": loss, **factories}.items():
        if one is not None and not callable(one):
            what, example = REMEDIES[name]
            raise InputError(f"{name}= is a function {what}, not {_named(one)}{example}")


def check_waits(**seconds: Any) -> None:
    """Refuse deadlines before the beginning."""
    for name, one in seconds.items():
        if one is not None and not (isinstance(one, Real) and float(one) > 0):
            raise InputError(f"{name}={one!r}: use seconds above 0, or None for no end of waiting")


def check_metrics(metrics: Any) -> None:
    """Refuse metrics without names."""
    if not isinstance(metrics, Mapping):
        raise InputError(
            f"metrics= has functions of outputs and targets by name, as in {{'hits': hits}}, and is"
            f" {_named(metrics)}"
        )


def check_program(program: Any) -> None:
    """Refuse the name of a schedule, or a schedule without a shape."""
    if isinstance(program, Program):
        return
    name = program if isinstance(program, str) else getattr(program, "name", "1f1b")
    raise InputError(
        f"a pipeline runs a program, not {_named(program)}: give that of a schedule at a shape, as"
        f" weft.schedules.REGISTRY[{name!r}](devices=4, microbatches=8), or one that"
        f" weft.notation.read_program reads"
    )


def _named(given: Any) -> str:
    """What it is, in short."""
    if isinstance(given, str):
        return repr(given)
    name = getattr(given, "name", None)
    is_schedule = isinstance(name, str) and callable(given)
    return f"the schedule {name}" if is_schedule else f"a value of type {type(given).__name__}"
