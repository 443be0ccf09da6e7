"""Replicas: the same program several times, each on devices of its own.

    1f1b on 2 devices, twice     device 0  F0 F1 B0 B1     pipe 0, microbatches 0 and 1
                                 device 1  F0 B0 F1 B1
                                 device 2  F2 F3 B2 B3     pipe 1, microbatches 2 and 3
                                 device 3  F2 B2 F3 B3

A replica is a pipe on devices of its own, so gradients are summed as over the pipes of Chimera.
Neighbouring replicas may hold some of the experts of a model each, and exchange tokens.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.errors import InputError
from weft.ir.actions import Actions
from weft.ir.kinds import Kind, Stream
from weft.ir.lanes import Lane
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.lower.periods import taking
from weft.lower.sums import gathers, sums


def replicated(program: Program, replicas: int, *, expert_ranks: int = 1) -> Program:
    """Replicas of a program side by side; a batch has the microbatches of all, in their order.

    `expert_ranks` neighbouring ones each hold some of the experts, and exchange tokens.
    """
    if replicas < 1:
        raise InputError(f"{program.name} cannot have {replicas} replicas; use 1 or more")
    if program.expert_groups and replicas > 1:
        raise InputError(f"{program.name} has expert groups: replicate it as it was before")
    if expert_ranks < 1 or replicas % expert_ranks:
        raise InputError(
            f"{program.name}: {replicas} replicas do not make whole groups of {expert_ranks} expert"
            f" ranks; use a multiple of {expert_ranks}"
        )
    if replicas == 1:
        return program
    if (program.actions.kind == Kind.UPDATE).any():
        several = _side_by_side(_without_sums(program), replicas, expert_ranks)
        return sums(several, is_sharded=gathers(program))
    return _side_by_side(program, replicas, expert_ranks)


def _without_sums(program: Program) -> Program:
    """Without sums, which are over all replicas."""
    kept = [index for index, lane in enumerate(program.lanes) if lane.stream is not Stream.REDUCE]
    return taking(program, ~np.isin(program.actions.kind, (Kind.REDUCE, Kind.GATHER)), kept)


def _side_by_side(program: Program, replicas: int, expert_ranks: int) -> Program:
    lanes = {
        _moved(lane, replica * program.devices): _renumbered(program, actions, replica, replicas)
        for replica in range(replicas)
        for lane, actions in program.contents().items()
    }
    pipes, period = len(program.placement.pipes), program.period
    return Program.build(
        f"{program.name} x {replicas}",
        _placed(program.placement, replicas),
        lanes,
        microbatches=program.microbatches * replicas,
        graph=program.graph,
        pipe_of=[pipe + pipes * one for one in range(replicas) for pipe in program.pipe_of],
        period=period
        and replace(
            period,
            prologue=period.prologue * replicas,
            body=period.body * replicas,
            microbatches=period.microbatches * replicas,
        ),
        is_stashing=program.is_stashing,
        parts=program.parts,
        ties=program.ties,
        norms=program.norms,
        expert_groups=_expert_groups(pipes, replicas, expert_ranks),
    )


def _expert_groups(pipes: int, replicas: int, ranks: int) -> list[range]:
    """For each pipe of a program, its copies in neighbouring replicas."""
    return [
        range(first + pipe, first + pipe + ranks * pipes, pipes)
        for first in range(0, replicas * pipes if ranks > 1 else 0, ranks * pipes)
        for pipe in range(pipes)
    ]


def _placed(placement: Placement, replicas: int) -> Placement:
    moves = [one * placement.devices for one in range(replicas)]
    return Placement(
        tuple(tuple(device + move for device in pipe) for move in moves for pipe in placement.pipes)
    )


def _moved(lane: Lane, devices: int) -> Lane:
    """The same lane that many devices further."""
    channel = lane.channel and lane.channel._replace(
        source=lane.channel.source + devices, destination=lane.channel.destination + devices
    )
    return lane._replace(device=lane.device + devices, channel=channel)


def _renumbered(program: Program, actions: Actions, replica: int, replicas: int) -> Actions:
    """With the pipes and microbatches of a replica: a step has those of all."""
    step, index = np.divmod(actions.microbatch, program.microbatches)
    number = (step * replicas + replica) * program.microbatches + index
    return actions.replace(
        microbatch=np.where(actions.microbatch >= 0, number, -1),
        pipe=actions.pipe + replica * len(program.placement.pipes),
    )
