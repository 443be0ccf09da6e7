"""Measuring: all parts of a profile, one after the other, made into one cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from weft.cost import Cost
from weft.errors import InputError
from weft.ir.program import Program
from weft.runtime.batch import cut
from weft.runtime.profile.costs import Findings
from weft.runtime.profile.hops import hops
from weft.runtime.profile.rests import overhead
from weft.runtime.profile.rounds import Rounds
from weft.runtime.profile.sample import THOROUGH, Effort, Flow, Sample, Watch
from weft.runtime.world import Alone, Ranks, World


def profiled(
    stages: Sequence[nn.Module],
    program: Program,
    sample: Sample,
    effort: Effort = THOROUGH,
    watch: Watch = lambda what, share: None,
) -> Cost:
    """The cost of a program on this machine; in a process group every rank calls this.

    The stages stay as they are: copies of them are run.
    """
    if len(stages) != program.stages:
        raise InputError(f"{len(stages)} modules for the {program.stages} stages of {program.name}")
    weights = (weight for stage in stages for weight in stage.parameters())
    device = next((weight.device for weight in weights), torch.device("cpu"))
    world = _world(program, effort, device)
    with _told(world):
        (batch,) = cut([sample.batch], 1, "batch")
        batch = tuple(value.to(device) for value in batch)
        flow = Flow.through(stages, program.graph, batch)
        held = {s: stages[s] for d in world.devices for _, s in program.placement.held[d]}
        rounds = Rounds(held, program, sample, flow.inputs, effort.kinds)
        passed = hops(world, effort, device, watch)
        findings = Findings(
            program=program,
            ranks=program.devices // len(world.devices),
            hops=passed,
            messages=flow.messages(program.graph),
            overhead=overhead(flow, program, effort, passed, watch),
            stages=rounds.run(world, effort.rounds, watch),
        )
    return findings.cost(device=device, transport=world.carrier)


def _world(program: Program, effort: Effort, device: torch.device) -> World:
    if dist.is_available() and dist.is_initialized():
        return Ranks(program, depth=1, carrier=effort.transport, device=device)
    return Alone(program)


@contextmanager
def _told(world: World) -> Iterator[None]:
    """Whatever goes wrong here ends the waits of all other ranks."""
    try:
        yield
    except BaseException as error:
        world.fail(str(error) or type(error).__name__)
        raise
