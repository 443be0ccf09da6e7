"""Machines: a model on a device as the options describe it, and how fast a timeline makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from weft.cli.options import Machine
from weft.cost import (
    DEVICES,
    MODELS,
    Derivation,
    Device,
    Layout,
    Storage,
    Transformer,
    flops,
)
from weft.cost.mapping import named
from weft.errors import InputError
from weft.ir.graph import Backward
from weft.ir.kinds import Kind
from weft.notation import read_device, read_model
from weft.simulate import Steady
from weft.timeline import Timeline

Described = TypeVar("Described", Transformer, Device)


class Speed(NamedTuple):
    """Tokens of the whole machine in a second, and its FLOP/s relative to its peak."""

    devices: int
    tokens_per_second: float
    mfu: float


def speed(of: Derivation, timeline: Timeline, steady: Steady | None = None) -> Speed | None:
    """The speed of a step, or once a run has settled; None where a stage learns nothing.

    Every device that shares a stage feeds microbatches of its own.
    """
    program = timeline.program
    if any(stage.backward is not Backward.FULL for stage in program.graph.stages):
        return None
    microbatches, seconds = _rate(timeline, steady)
    if not seconds:
        return None
    copies = of.layout.experts * of.layout.replicas
    work = microbatches * flops(of.model) / seconds
    return Speed(
        devices=program.devices * copies,
        tokens_per_second=microbatches * of.model.tokens * copies / seconds,
        mfu=work / (program.devices * of.device.peak),
    )


def _rate(timeline: Timeline, steady: Steady | None) -> tuple[float, float]:
    """So many ordinary microbatches in so many seconds."""
    program = timeline.program
    if steady is not None:
        return program.microbatches / program.parts, steady.period
    actions = program.actions
    is_entry = (actions.kind == Kind.F) & (actions.stage == 0) & (actions.segment <= 0)
    return float(timeline.cost.covered(actions)[is_entry].sum()), timeline.makespan


def derivation_of(machine: Machine) -> Derivation:
    """The model, device and layout of the options; InputError where one is missing or wrong."""
    if machine.model is None or machine.device is None:
        raise InputError(_missing(machine))
    model = _found(machine.model, MODELS, read_model)
    sizes = {"microbatch": machine.microbatch_size, "sequence": machine.sequence}
    return Derivation(
        model=replace(model, **_given(sizes)),
        device=_found(machine.device, DEVICES, read_device),
        layout=Layout(
            experts=machine.expert_parallel or 1,
            replicas=machine.data_parallel or 1,
            layers=machine.layers or (),
        ),
        storage=_storage(machine.state_bytes),
    )


def _missing(machine: Machine) -> str:
    if machine.model is not None:
        return "--model needs --device, what it runs on: `weft list devices` has names"
    if machine.device is not None:
        return (
            "--device needs --model, what runs on it: `weft list models` has names"
            " (the number of devices is --devices)"
        )
    given = next(iter(_given(asdict(machine)))).replace("_", "-")
    return f"--{given} describes a model on a device; give --model and --device too"


def _found(
    name: str, presets: Mapping[str, Described], read: Callable[[str], Described]
) -> Described:
    """A preset, or else what a file describes; gpt-6.2b has a suffix and is no file."""
    path = Path(name)
    is_file = len(path.parts) > 1 or path.suffix == ".json" or path.is_file()
    if name not in presets and is_file:
        return read(name)
    kind = "model" if presets is MODELS else "device"
    return named(presets, name, f"{kind} or file")


def _storage(sizes: tuple[float, ...] | None) -> Storage:
    if sizes is None:
        return Storage()
    if len(sizes) != 3:
        raise InputError(
            f"--state-bytes has {len(sizes)} numbers; it takes three, of weights, gradients and"
            " optimizer state"
        )
    weights, gradients, optimizer = sizes
    return Storage(weights=weights, gradients=gradients, optimizer=optimizer)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
