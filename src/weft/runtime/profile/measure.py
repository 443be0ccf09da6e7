"""Measuring: all parts of a profile, one after the other, made into one cost."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor, nn

from weft.cost import Cost
from weft.cost.measurement import Average
from weft.errors import InputError
from weft.ir.program import Program
from weft.lower import over
from weft.runtime.batch import cut
from weft.runtime.device.link import linked
from weft.runtime.experts.apart import keep_apart
from weft.runtime.experts.ranks import groups_in
from weft.runtime.precision import precision_of
from weft.runtime.profile.costs import Findings
from weft.runtime.profile.found import Found, of_all_ranks
from weft.runtime.profile.hops import passed
from weft.runtime.profile.rests import overhead
from weft.runtime.profile.rounds import Rounds
from weft.runtime.profile.sample import THOROUGH, Effort, Sample, StageValues, Watch
from weft.runtime.profile.updates import updates
from weft.runtime.ranks.blame import failure_of
from weft.runtime.ranks.carriers import neighbours
from weft.runtime.ranks.world import World, world_of
from weft.runtime.split.stages import Stages
from weft.runtime.stage.values import Value

LEAST, MOST = 1e-3, 1e-2  # seconds of a rest
PATIENCE = 60.0  # seconds for all ranks to come
LONG = 4  # times what a message takes, so that it is there before the next action


def profiled(
    stages: Sequence[nn.Module],
    program: Program,
    sample: Sample,
    effort: Effort = THOROUGH,
    watch: Watch = lambda what, share: None,
    *,
    runs: Program | None = None,
) -> Cost:
    """The cost of a program on this machine; in a process group every rank calls this.

    `runs` is the program as it runs, where its stages are cut into segments: these are timed too.
    The stages stay as they are: copies of them are run.
    """
    if len(stages) != program.stages:
        raise InputError(f"{len(stages)} modules for the {program.stages} stages of {program.name}")
    _refuse_exchanging(stages, program)
    stages = Stages.of(stages)
    program = program if stages.graph is None else over(program, stages.graph)
    weights = (weight for stage in stages for weight in stage.parameters())
    device = next((weight.device for weight in weights), torch.device("cpu"))
    with _together(program, effort, device) as world:
        batch, sample = _alone(sample, device)
        precision = precision_of(sample.precision)
        values = StageValues.through(stages, program.graph, batch, stages.carries, precision)
        messages = values.messages(program.graph, stages.carries, sample.compress)
        held = {stage for device in world.devices for _, stage in program.placement.held[device]}
        own = {stage: stages[stage] for stage in sorted(held)}
        rounds = Rounds(own, program, sample, values.inputs, effort.kinds)
        mine = rounds.run(world, effort.rounds, watch)
        del rounds
        gc.collect()  # its copies of the stages, before there are others
        copies = copies_of(stages, own.values())
        world.gather(b"", "steps with updates")
        is_on_gpu = device.type == "cuda"
        timed, host = updates(copies, runs or program, sample, effort, watch, is_on_gpu=is_on_gpu)
        for stage, one in timed.items():
            mine[stage].replace(one)
        found = of_all_ranks(mine, world)
        rest = _rest(found)
        hops = passed(world, neighbours(program), effort, device, rest, watch)
        rest = max(rest, LONG * hops.slowest.of(max(messages, default=0.0)))
        if not is_on_gpu:
            host = overhead(values, program, effort, rest, watch)
        ranks = program.devices // len(world.devices)
        average = Average.MEAN if is_on_gpu else Average.MEDIAN  # in steps, actions add up
        findings = Findings(program, ranks, hops, messages, host, found, average)
        cost = findings.cost(device=device, transport=world.carrier)
        return linked(cost, device, world.gather) if effort.link else cost


def _refuse_exchanging(stages: Sequence[nn.Module], program: Program) -> None:
    is_exchanging = any(group.size > 1 for stage in stages for group in groups_in(stage))
    if is_exchanging and not program.expert_groups:
        raise InputError(
            "stages that exchange tokens with other ranks cannot be timed one by one, as each would"
            " wait for the others: profile the program of all replicas, lower.replicated(program,"
            " replicas, expert_ranks=...), whose ranks take the same turns, or a model of one rank"
        )


def _alone(sample: Sample, device: torch.device) -> tuple[Value, Sample]:
    """The microbatch, and the sample with it: neither it nor its target is part of a batch."""
    batch, target = (
        cut([data], 1, name)[0].cloned()
        for data, name in ((sample.batch, "batch"), (sample.target, "target"))
    )
    batch = batch.to(device)
    return batch, replace(sample, batch=batch.tree, target=target.tree)


def copies_of(stages: Sequence[nn.Module], own: Iterable[nn.Module]) -> Stages:
    """Copies of all stages; those that are not our own share their weights with the originals."""
    mine = {id(one) for stage in own for one in _tensors(stage)}
    others = {id(one): one for stage in stages for one in _tensors(stage) if id(one) not in mine}
    given, made = Stages.of(stages), copy.deepcopy([*stages], others)
    for stage, copied in zip(stages, made, strict=True):
        for old, new in zip(stage.parameters(), copied.parameters(), strict=True):
            keep_apart(old, new)  # which a copy of a weight does not know
    return given.with_modules(made)


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _rest(found: Mapping[int, Found]) -> float:
    """A rest about as long as the forward of a stage."""
    return min(max(median(median(one.seconds["forward"]) for one in found.values()), LEAST), MOST)


@contextmanager
def _together(program: Program, effort: Effort, device: torch.device) -> Iterator[World]:
    """All ranks; whatever goes wrong here ends the waits of the others."""
    world = world_of(program, depth=1, carrier=effort.transport, device=device, deadline=PATIENCE)
    world.begin(None)  # stages may be slow
    try:
        yield world
    except BaseException as error:
        world.fail(failure_of(error, world.devices.start))
        raise
    finally:
        world.close()
