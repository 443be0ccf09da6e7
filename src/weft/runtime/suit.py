"""What suits a pipeline: which programs run, on which modules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from weft.errors import InputError
from weft.ir.graph import Backward
from weft.ir.kinds import Kind, Stream
from weft.ir.program import Program
from weft.lower import wires
from weft.notation import token
from weft.runtime.stage.storage.marks import marked
from weft.verify import check


def refuse_other_than_program(given: object) -> None:
    """Refuse what only makes a program, or names one."""
    if not isinstance(given, Program):
        raise InputError(
            f"a {type(given).__name__} is no program; a schedule makes one of a shape:"
            f" weft.schedules.one_f_one_b(devices=4, microbatches=8)"
        )


def check_suits(stages: Sequence[nn.Module], program: Program) -> None:
    """Refuse, before the first action, what cannot run."""
    check(program)
    if is_asynchronous(program):
        _check_asynchronous(program)
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


def is_asynchronous(program: Program) -> bool:
    """Whether updates come between microbatches."""
    return program.period is not None or bool((program.actions.version > 0).any())


def _check_asynchronous(program: Program) -> None:
    """Refuse what is asynchronous and cannot run indefinitely."""
    if program.period is None:
        raise InputError(
            f"{program.name} is too short to repeat, so it cannot run indefinitely; give it more"
            f" updates (updates={program.steps + 2 * program.devices})"
        )
    _check_versions(program)
    _check_recomputation(program)


def _check_versions(program: Program) -> None:
    """Refuse a program that never learns, or that does not say with which weights it computes."""
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
            f"{program.name} is asynchronous: device {program.device_of[row]} has to know which"
            f" version of the weights {token(program, row)} uses. Name it ({token(program, row)}@0"
            f" for the first)"
        )


def _check_recomputation(program: Program) -> None:
    """Refuse to recompute a microbatch of a step and not the same one of a later step."""
    assert program.period is not None
    shift = program.period.microbatches
    kinds = {kind: set[tuple[int, int]]() for kind in (Kind.B, Kind.R)}
    for action in program.actions:
        kind = Kind.B if action.kind is Kind.I else action.kind
        if kind in kinds and action.microbatch is not None:
            kinds[kind].add((action.stage, action.microbatch))
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


def check_capturable(program: Program) -> None:
    """Refuse a program whose stages cannot be replayed from CUDA graphs."""
    kinds = program.actions.kind
    reasons = {
        "computes with several versions of the weights, which are not in one place": (
            program.period is not None
        ),
        "recomputes forwards, which saves nothing where graphs keep their memory": (
            (kinds == Kind.R).any()
        ),
        "moves what forwards keep to the host, where no graph finds it": (
            (kinds == Kind.OFFLOAD).any()
        ),
        "has a stage that takes the whole batch, which is not one microbatch": any(
            stage.is_whole_batch for stage in program.graph.stages
        ),
        "runs parts of a stage beside the computation": (program.actions.segment >= 0).any(),
        "exchanges tokens, of which the host has to know how many there are": (
            bool(program.expert_groups)
        ),
    }
    for why, is_so in reasons.items():
        if is_so:
            raise InputError(
                f"{program.name} {why}: graphs=True is for synchronous programs of whole stages"
                f" without recomputation or offload. Leave graphs off, or use another program"
            )


def refuse_marked(stages: Sequence[nn.Module]) -> None:
    """Refuse to replay stages whose modules say how what they save is stored."""
    for index, stage in enumerate(stages):
        for name, _, _ in marked(stage):
            raise InputError(
                f"{name or 'the module'} of stage {index} is marked as stored_in_fp8 or recomputed,"
                f" and graphs=True keeps all that a stage saves in memory of its own: leave one out"
            )


def forwards_of(program: Program) -> Program:
    """The forwards of the first step alone, in their order, with their messages."""
    lanes = {}
    is_first = (program.actions.kind == Kind.F) & (
        program.actions.microbatch < program.microbatches
    )
    for index, lane in enumerate(program.lanes):
        if lane.stream in (Stream.COMPUTE, Stream.EXPERTS):
            rows = np.flatnonzero(is_first & (program.lane_of == index))
            lanes[lane] = program.actions.take(rows).replace(joined=0, version=-1)
    return wires(program.with_lanes(lanes, period=None, ties=(), norms=()))
