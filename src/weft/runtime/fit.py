"""Fit: which programs run, on which modules, and what of them the executors run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from weft.errors import InputError
from weft.ir.graph import Backward
from weft.ir.kinds import Kind
from weft.ir.lanes import Lane
from weft.ir.program import Program
from weft.lower import unpaired
from weft.lower.periods import period_of
from weft.notation import token
from weft.verify import check


def computed(program: Program) -> Program:
    """What the executors run, one action after the other: the rest follows from it."""
    if not (program.actions.kind <= Kind.R).all():
        program = _taking(program, [kind for kind in Kind if kind.is_compute])
    return unpaired(_with_all_lanes(program))


def _with_all_lanes(program: Program) -> Program:
    """A lane for each device; one that holds stages of a pipe without microbatches does nothing."""
    idle = [lane for lane in map(Lane, range(program.devices)) if lane not in program.lanes]
    if not idle:
        return program
    return program.with_lanes({**program.contents(), **{lane: [] for lane in idle}})


def flowing(program: Program) -> Program:
    """What the runners of a program that does not flush run: computation and updates."""
    return unpaired(_taking(program, [Kind.F, Kind.B, Kind.R, Kind.UPDATE]))


def forwards_of(program: Program) -> Program:
    """The forwards alone, in their order."""
    return _taking(program, [Kind.F])


def first_step(program: Program) -> Program:
    """What belongs to the microbatches of the first step, without versions."""
    lanes = {}
    for lane, actions in program.contents().items():
        is_first = (actions.microbatch >= 0) & (actions.microbatch < program.microbatches)
        lanes[lane] = actions if is_first.all() else actions.take(np.flatnonzero(is_first))
    return program.with_lanes(lanes)


def _taking(program: Program, kinds: Sequence[Kind]) -> Program:
    """The compute lanes with these kinds alone."""
    lanes = {program.lanes[index]: int(index) for index in np.flatnonzero(program.is_on_compute)}
    rows = [
        np.flatnonzero(np.isin(program.actions.kind, kinds) & (program.lane_of == index))
        for index in lanes.values()
    ]
    contents = {}
    for lane, mine in zip(lanes, rows, strict=True):
        taken, is_whole = program.actions.take(mine), len(mine) == len(program.lane(lanes[lane]))
        contents[lane] = taken if is_whole else taken.replace(joined=0)
    place = np.repeat(np.arange(len(rows)), [*map(len, rows)])
    period = period_of(program, source=np.concatenate(rows), lane=place, lanes=len(rows))
    return program.with_lanes(contents, period=period)


def check_fit(stages: Sequence[nn.Module], program: Program) -> int:
    """Refuse, before the first action, what cannot run; the depth that its channels need."""
    report = check(program)
    _check_kinds(program)
    if is_flowing(program):
        _check_flow(program)
    elif program.steps > 1:
        raise InputError(
            f"{program.name} has {program.steps} steps and no update between them; the runtime"
            f" takes one batch a step: give it a program of one step"
        )
    if len(stages) != program.stages:
        raise InputError(f"{len(stages)} modules for the {program.stages} stages of {program.name}")
    if len([s for s in program.graph.successors if not s]) != 1:
        raise InputError(f"{program.name} has several last stages; join them in one")
    _check_frozen(stages, program)
    return report.channel_depth or 0


def is_flowing(program: Program) -> bool:
    """Whether updates come between microbatches."""
    return program.period is not None or bool((program.actions.version > 0).any())


def _check_kinds(program: Program) -> None:
    """Refuse actions that the executors do not have."""
    actions = program.actions
    if np.isin(actions.kind, (Kind.OFFLOAD, Kind.ONLOAD)).any():
        raise InputError(f"{program.name} offloads, which the runtime does not do yet")
    is_apart = ~program.is_on_compute[program.lane_of] & (actions.kind <= Kind.R)
    if is_apart.any() or (actions.segment >= 0).any():
        raise InputError(
            f"{program.name} cuts its layers up for experts, which the runtime does not do yet;"
            f" leave the experts pass out"
        )
    if any(stage.is_whole_batch for stage in program.graph.stages):
        raise InputError(
            f"{program.name} has a stage that reads the whole batch at once, which the runtime"
            f" does not do yet: it runs one microbatch after the other"
        )


def _check_flow(program: Program) -> None:
    """Refuse what does not flush and cannot run without end."""
    if program.period is None:
        raise InputError(
            f"{program.name} is too short to repeat, so it cannot run on and on; give it more"
            f" updates (updates={program.steps + 2 * program.devices})"
        )
    if np.isin(program.actions.kind, (Kind.I, Kind.W)).any():
        raise InputError(
            f"{program.name} does not flush and splits its backwards, which the runtime does not"
            f" do yet; use whole backwards"
        )
    if len(program.placement.pipes) > 1 or (program.actions.span > 1).any():
        raise InputError(f"{program.name} does not flush and has several pipes or spans")
    _check_versions(program)
    _check_recomputation(program)


def _check_versions(program: Program) -> None:
    """Refuse a flow that never learns, or that does not say with which weights it computes."""
    actions = program.actions
    if not (actions.kind == Kind.UPDATE).any():
        raise InputError(
            f"{program.name} repeats and never updates its weights; add updates, or give one step"
            f" that does not repeat"
        )
    learns = np.array([stage.backward is Backward.FULL for stage in program.graph.stages])
    unnamed = (actions.kind <= Kind.R) & (actions.version < 0) & learns[actions.stage]
    for row in np.flatnonzero(unnamed)[:1].tolist():
        raise InputError(
            f"{program.name} does not flush: device {program.device_of[row]} has to know which"
            f" version of the weights {token(program, row)} uses. Name it ({token(program, row)}@0"
            f" for the first)"
        )


def _check_recomputation(program: Program) -> None:
    """Refuse a flow that recomputes a microbatch of a step and not the same one of a later step."""
    assert program.period is not None
    shift = program.period.microbatches
    kinds = {kind: set[tuple[int, int]]() for kind in (Kind.B, Kind.R)}
    for action in program.actions:
        if action.kind in kinds and action.microbatch is not None:
            kinds[action.kind].add((action.stage, action.microbatch))
    again = {(stage, microbatch % shift) for stage, microbatch in kinds[Kind.R]}
    for stage, microbatch in sorted(kinds[Kind.B] - kinds[Kind.R]):
        if (stage, microbatch % shift) in again:
            raise InputError(
                f"{program.name} recomputes stage {stage} for some of the microbatches"
                f" {microbatch % shift}, {microbatch % shift + shift}, ..., but not for"
                f" {microbatch}: recompute all of them or none"
            )


def _check_frozen(stages: Sequence[nn.Module], program: Program) -> None:
    """Refuse weights that learn where the program has no gradient for them."""
    graph = program.graph
    for index, module in enumerate(stages):
        learning = [name for name, weight in module.named_parameters() if weight.requires_grad]
        if learning and graph.stages[index].backward is not Backward.FULL:
            raise InputError(
                f"stage {index} is frozen in {program.name}"
                f" (backward={graph.stages[index].backward.value}), but {learning[0]} of its module"
                f" learns: freeze it with requires_grad_(False), or give the stage backward=full"
            )
    for source, destination in graph.edges:
        if graph.stages[source].is_learning and not graph.stages[destination].is_learning:
            raise InputError(
                f"stage {source} of {program.name} gets no gradient from stage {destination}, which"
                f" has backward=none: give that one backward=input"
            )


def kind_of(stages: Sequence[nn.Module]) -> tuple[torch.dtype, torch.device]:
    """The type and device of the first weight."""
    for stage in stages:
        for weight in stage.parameters():
            return weight.dtype, weight.device
    return torch.get_default_dtype(), torch.device("cpu")
