"""Verdict and reality: a program at random, judged, and then run.

accepted   trains to the bit as its reference does
refused    by a rule, or by the runtime; run nevertheless, a plain program does not come right
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import nn

from tests.runtime import exactness
from tests.runtime.changes import ASYNCHRONOUS, SYNCHRONOUS, changed
from tests.runtime.models import MODELS, adam, batches, linear, plain_descent, squared
from tests.runtime.random_programs import random_asynchronous
from tests.runtime.test_branches import GRAPHS, Join
from tests.runtime.test_branches import programs as branching
from tests.verify import programs
from weft.errors import InputError, ProgramError
from weft.ir.actions import Action
from weft.ir.graph import Backward, Graph
from weft.ir.kinds import Kind
from weft.ir.lanes import Lane
from weft.ir.program import Program
from weft.lower import recompute, recompute_early
from weft.runtime import Pipeline, Reference
from weft.runtime.reference import method_of, restarted
from weft.runtime.suit import check_suits
from weft.runtime.weights.staleness import scoped
from weft.schedules import REGISTRY, Shape
from weft.verify import Finding

# rules without which the runtime fails or trains wrongly; the others refuse work for nothing too
NECESSARY = [f"rule: {name}" for name in ("placed", "produced", "drained", "ordered", "deadlock")]


class Unchecked:
    """A report of what nobody looked at."""

    channel_depth = 8

    def __init__(self, _: Program) -> None: ...


class Outcome(NamedTuple):
    """What became of a program; `wrong` is what its run and its verdict disagree on."""

    verdict: str  # "accepted", or why it was refused
    wrong: str = ""


# synchronous programs


def synchronous_bases() -> list[Program]:
    shapes = [(2, 4), (3, 6), (4, 4)]
    made = []
    for schedule in REGISTRY:
        for devices, microbatches in shapes:
            shape = Shape(
                devices=devices,
                microbatches=microbatches,
                stages_per_device=schedule.stages_for(),
            )
            if not schedule.is_asynchronous and schedule.accepts(shape) is None:
                made.append(schedule.program(shape))
    made += [
        program
        for name, program in programs.VALID.items()
        if name != "2bw" and (program.actions.segment < 0).all()  # which modules would have to show
    ]
    made += [program for graph in GRAPHS.values() for program in branching(graph)]
    return [*made, *map(recompute, made[::5]), *map(recompute_early, made[1::5])]


def synchronous(chosen: Random, bases: Sequence[Program]) -> tuple[Program, Outcome]:
    """A changed program of one step, and what became of it."""
    program = changed(chosen.choice(bases), chosen, SYNCHRONOUS)
    stages = modules(program.graph, chosen)
    refusal = refused(stages, program)
    if refusal is None:
        return program, Outcome("accepted", _trained(stages, program))
    if refusal in NECESSARY and is_plain(program) and _comes_right(stages, program):
        return program, Outcome(refusal, "refused, but comes right")
    return program, Outcome(refusal)


def modules(graph: Graph, chosen: Random) -> list[nn.Module]:
    """A layer for each stage, frozen where its stage is, for most programs."""
    if graph.is_chain and all(stage.backward is Backward.FULL for stage in graph.stages):
        return MODELS["layers"].stages(len(graph)) if chosen.random() < 0.5 else linear(len(graph))
    torch.manual_seed(0)
    made = [Join(max(1, len(before))) for before in graph.predecessors]
    is_fitting = chosen.random() < 0.9
    for stage, module in zip(graph.stages, made, strict=True):
        module.requires_grad_(stage.backward is Backward.FULL or not is_fitting)
    return [*made]


def refused(stages: Sequence[nn.Module], program: Program) -> str | None:
    """The rule that refuses a program, or the runtime's reason."""
    try:
        check_suits(stages, program)
    except ProgramError as error:
        first = error.findings[0]
        assert isinstance(first, Finding)
        return f"rule: {first.rule}"
    except InputError as error:
        return f"runtime: {str(error).removeprefix(program.name)[:40]}"
    return None


def is_plain(program: Program) -> bool:
    """Whether the runtime needs all that it says: no wires, pairs, updates or frozen stages."""
    return not (
        (program.actions.kind > Kind.R).any()
        or program.actions.joined.any()
        or (program.actions.segment >= 0).any()
        or any(stage.is_whole_batch for stage in program.graph.stages)
        or any(stage.backward is not Backward.FULL for stage in program.graph.stages)
    )


def _trained(stages: list[nn.Module], program: Program) -> str:
    try:
        found = exactness.differences(
            stages, program, batches(program.microbatches * 3 - 1, 2), clip=0.5, loss=squared
        )
    except Exception as error:  # a failure of any kind is one that verification did not foresee
        return f"{type(error).__name__}: {error}"
    return ", ".join(found[:3])


def _comes_right(stages: list[nn.Module], program: Program) -> bool:
    """Whether a refused program trains as the unsplit model does, if it is run nevertheless."""
    copies = copy.deepcopy(stages)
    ((batch, target),) = batches(program.microbatches * 3, 1)
    shared: dict[str, Any] = {"loss": squared, "optimizer": plain_descent, "seed": 3}
    checks = "weft.runtime.task.check"
    with patch(f"{checks}_suits"), patch(checks, Unchecked):
        try:
            pipeline = Pipeline(stages, program, **shared)
            pipeline.step(batch, target)
        except Exception:
            return False
    Reference(copies, _complete(program), **shared).step(batch, target)
    return all(
        torch.allclose(value, copies[stage].state_dict()[name], atol=1e-6)
        for (_, stage), module in pipeline.modules.items()
        for name, value in module.state_dict().items()
    )


def _complete(program: Program) -> Program:
    """All forwards, then all backwards: the order in which the reference adds up gradients."""
    microbatches, stages = range(program.microbatches), range(program.stages)
    held: list[list[Action]] = [[] for _ in range(program.devices)]
    for kind, order in ((Kind.F, stages), (Kind.B, reversed(stages))):
        for stage in order:
            for microbatch in microbatches:
                pipe = program.pipe_of[microbatch]
                device = program.placement.pipes[pipe][stage]
                held[device].append(Action(stage, kind, microbatch))
    return program.with_lanes({Lane(device): lane for device, lane in enumerate(held)})


# asynchronous programs


def asynchronous_bases() -> list[Program]:
    made = []
    for name, variants in (
        ("naive-async", [""]),
        ("pipedream", ["", "vertical-sync"]),
        ("pipedream-2bw", ["", "fresh", "eager"]),
        ("wpipe", ["", "fresh", "eager"]),
    ):
        for variant in variants:
            for devices, microbatches in ((2, 2), (3, 4)):
                shape = Shape(
                    devices=devices,
                    microbatches=microbatches,
                    stages_per_device=2 if name == "wpipe" else 1,
                    variant=variant,
                    updates=3 * devices + 2,
                )
                if REGISTRY[name].accepts(shape) is None:
                    made.append(REGISTRY[name].program(shape))
    return [*made, programs.periodic_two_bw(), *map(recompute, made[::3])]


def asynchronous(chosen: Random, bases: Sequence[Program]) -> tuple[Program, Outcome]:
    """An asynchronous program, and what became of it, drained now and then."""
    if chosen.random() < 0.6:
        program = random_asynchronous(chosen)
        if chosen.random() < 0.4:
            program = changed(program, chosen, ASYNCHRONOUS)
    else:
        program = changed(chosen.choice(bases), chosen, ASYNCHRONOUS)
    model = "tied" if chosen.random() < 0.2 else "layers"
    refusal = refused(MODELS[model].stages(program.stages), program)
    if refusal is not None:
        return program, Outcome(refusal)
    try:
        drains = [update for update in range(7) if chosen.random() < 0.2]
        clip = 0.05 if chosen.random() < 0.3 else None
        return program, Outcome("accepted", trained_apart(model, program, drains=drains, clip=clip))
    except InputError as error:
        return program, Outcome(f"runtime: {str(error)[:40]}")
    except Exception as error:
        return program, Outcome("accepted", f"{type(error).__name__}: {error}")


def trained_apart(
    model: str,
    program: Program,
    *,
    updates: int = 7,
    drains: Sequence[int] = (),
    clip: float | None = None,
) -> str:
    """What differs between a pipeline and the reference, by the versions that the program names."""
    make, data, loss = MODELS[model]
    stages = make(program.stages)
    copies = copy.deepcopy(stages)
    shared: dict[str, Any] = {"loss": loss, "optimizer": adam, "seed": 3, "clip": clip}
    pipeline = Pipeline(stages, program, **shared)
    method = method_of(program)
    if method.backward is not None:  # nothing is stashed, so that a drain starts anew
        method = restarted([update + 1 for update in drains], method)
    groups = scoped(program, None) if clip else None
    reference = Reference(copies, method, groups=groups, **shared)
    found = []
    for update, (batch, target) in enumerate(data(program.microbatches * 3 - 1, updates)):
        if not torch.equal(pipeline.step(batch, target).loss, reference.step(batch, target)):
            found.append(f"the loss of update {update}")
        if update in drains:
            pipeline.drain()
    pipeline.drain()
    return ", ".join([*found, *different(pipeline, copies)][:3])


def different(pipeline: Pipeline, copies: Sequence[nn.Module]) -> list[str]:
    return [
        f"{name} of stage {stage}"
        for (_, stage), module in pipeline.modules.items()
        for name, value in module.state_dict().items()
        if not torch.equal(value, copies[stage].state_dict()[name])
    ]
