"""A model of any kind, traced and cut into stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from weft.errors import InputError
from weft.runtime.split.compare import compared
from weft.runtime.split.drawing import with_drawing_modules
from weft.runtime.split.inputs import Inputs, inputs_of
from weft.runtime.split.partition import (
    Calls,
    Partition,
    branches_by_names,
    by_branches,
    by_names,
    evenly,
)
from weft.runtime.split.pieces import pieces_of
from weft.runtime.split.stages import Stages
from weft.runtime.split.trace import Trace, by_export, by_modules, is_on_meta
from weft.runtime.split.tracer import Opens, is_hooked
from weft.runtime.split.traits import refuse_kept, traits_of

FINEST = 0.25  # of an even share of the stages: a module that weighs less is kept whole
TRACES = ("auto", "modules", "export")


def cut_by_tracing(
    model: nn.Module,
    example: Any,
    *,
    stages: int | None = None,
    cuts: Sequence[str] | None = None,
    balance: str = "parameters",
    branches: bool = False,
    trace: str = "auto",
    check: bool = True,
) -> Stages:
    """The stages of any model; `weft.split` says what the arguments mean."""
    _refuse(model, stages, cuts, trace)
    if is_on_meta(model):  # where it has no values
        example = pytree.tree_map_only(Tensor, lambda value: value.to("meta"), example)
    inputs = inputs_of(model, example)
    traces = {
        "modules": lambda: _by_modules(model, inputs, _opens(model, stages, cuts, balance)),
        "export": lambda: by_export(model, inputs),
    }
    failures: list[str] = []
    for how in traces if trace == "auto" else [trace]:
        try:
            found = traces[how]()
        except InputError as error:
            failures.append(str(error))
            continue
        made = _cut(found, stages, cuts, balance, branches)
        try:
            made.checked = compared(model, made, example) if check else "not compared"
        except InputError as error:
            failures.append(f"by {how}, {error}")
        else:
            return made
    raise InputError(". ".join(failures))


def _by_modules(model: nn.Module, inputs: Inputs, opens: Opens) -> Trace:
    found = by_modules(model, inputs, opens)
    refuse_kept(found)
    return found


def _refuse(model: nn.Module, stages: int | None, cuts: Sequence[str] | None, trace: str) -> None:
    if trace not in TRACES:
        raise InputError(f"trace={trace!r}; a model is traced by modules or export, or auto")
    if is_hooked(model):
        raise InputError(
            f"{type(model).__name__} has hooks, which no stage of it can run; hook its modules"
        )
    if cuts is None and stages is None:
        raise InputError("give the number of stages, or cuts=[...], the modules that begin one")
    if isinstance(cuts, str):
        raise InputError(f"cuts={cuts!r} is one text; give a list of names of modules")


def _opens(model: nn.Module, stages: int | None, cuts: Sequence[str] | None, balance: str) -> Opens:
    """Which modules are opened: those with a cut inside, or with so much that one may be needed."""
    if cuts is not None:
        return lambda path, _: any(cut.startswith(f"{path}.") for cut in cuts)
    if balance != "parameters":
        return lambda _path, _module: True
    least = FINEST * _weight(model) / (stages or 1)
    return lambda _, module: _weight(module) > least


def _weight(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def _cut(
    trace: Trace, stages: int | None, cuts: Sequence[str] | None, balance: str, branches: bool
) -> Stages:
    traits = traits_of(trace, balance)
    calls = Calls.of(trace, traits)
    if branches:
        calls = calls.without_preludes()
    partition = _partition(calls, stages, cuts, branches)
    if stages is not None and partition.count != stages:
        raise InputError(
            f"cuts {[*(cuts or ())]} make {partition.count} stages, and stages={stages}; leave out"
            f" one of both"
        )
    with_drawing_modules(trace, traits)
    return pieces_of(trace, partition, traits)


def _partition(
    calls: Calls, stages: int | None, cuts: Sequence[str] | None, branches: bool
) -> Partition:
    if cuts is not None:
        return branches_by_names(calls, cuts) if branches else by_names(calls, cuts)
    assert stages is not None
    return by_branches(calls, stages) if branches else evenly(calls, stages)
