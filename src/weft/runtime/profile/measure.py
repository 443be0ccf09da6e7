"""Measuring: all parts of a profile, one after the other, made into one cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median

import torch
from torch import nn

from weft.cost import Cost
from weft.errors import InputError
from weft.ir.program import Program
from weft.runtime.batch import cut
from weft.runtime.profile.costs import Findings
from weft.runtime.profile.hops import hops
from weft.runtime.profile.rests import overhead
from weft.runtime.profile.rounds import Found, Rounds
from weft.runtime.profile.sample import THOROUGH, Effort, Sample, StageValues, Watch
from weft.runtime.profile.updates import TimedUpdates
from weft.runtime.ranks.blame import failure_of
from weft.runtime.ranks.world import World, world_of

LEAST, MOST = 1e-3, 1e-2  # seconds of a rest
PATIENCE = 60.0  # seconds for all ranks to come
LONG = 4  # times what a message takes, so that it is there before the next action


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
    with _together(program, effort, device) as world:
        (batch,) = cut([sample.batch], 1, "batch")
        values = StageValues.through(stages, program.graph, batch.to(device))
        messages = values.messages(program.graph)
        updates = TimedUpdates(stages, program, sample, world)
        rounds = Rounds(updates, program, sample, values.inputs, effort.kinds)
        found = rounds.run(world, effort.rounds, watch)
        rest = _rest(found)
        passed = hops(world, effort, device, rest, watch)
        rest = max(rest, LONG * passed.of(max(messages, default=0.0)))
        host = overhead(values, program, effort, rest, watch)
    ranks = program.devices // len(world.devices)
    findings = Findings(program, ranks, passed, messages, host, found)
    return findings.cost(device=device, transport=world.carrier)


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
