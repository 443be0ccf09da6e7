"""Weight versions of a program: how many are resident, how stale the ones in use are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.ir.values import Value


def resident_versions(program: Program) -> list[int]:
    """For each stage, the most versions a device keeps at once, counted between actions.

    It keeps all from the oldest that is still to be used to the newest.
    """
    most = [1] * program.stages
    if not _has_versions(program):
        return most
    actions = program.actions
    for pipe, devices in enumerate(program.placement.pipes):
        for stage in range(len(devices)):
            mine = (actions.stage == stage) & (actions.pipe == pipe)
            rows = np.flatnonzero(mine & (actions.version >= 0) & (actions.edge < 0))
            kinds, versions = actions.kind[rows].tolist(), actions.version[rows].tolist()
            most[stage] = max(most[stage], _most_alive(kinds, versions))
    return most


def staleness(program: Program) -> list[int]:
    """For each stage, the most updates of earlier steps that the weights of a forward lack."""
    worst = [0] * program.stages
    if not _has_versions(program):
        return worst
    actions = program.actions
    forward = np.flatnonzero((actions.kind == Kind.F) & (actions.version >= 0))
    lacking = actions.microbatch[forward] // program.microbatches - actions.version[forward]
    for stage, updates in zip(actions.stage[forward].tolist(), lacking.tolist(), strict=True):
        worst[stage] = max(worst[stage], updates)
    return worst


def is_shared_update(program: Program) -> NDArray[np.bool_]:
    """For each action, whether it is an update that waits for other stages or other copies.

    That is one of a tied weight, one by a norm of several stages, or any where a stage has
    several copies.
    """
    actions, dependencies = program.actions, program.dependencies
    is_update = actions.kind == Kind.UPDATE
    if len(program.placement.pipes) > 1:
        return np.asarray(is_update)
    consumer, producer = dependencies.consumer, dependencies.producer
    is_apart = actions.stage[producer] != actions.stage[consumer]
    waits = actions.edge >= 0
    waits[consumer[(dependencies.value == Value.NORM) & is_apart]] = True
    return np.asarray(is_update & waits)


def _has_versions(program: Program) -> bool:
    return bool((program.actions.version > 0).any())


def _most_alive(kinds: list[int], versions: list[int]) -> int:
    """The newest version is always alive, an older one until no older one is used any more."""
    last_use: dict[int, int] = {}
    for position, (kind, version) in enumerate(zip(kinds, versions, strict=True)):
        if kind <= Kind.R:
            last_use[version] = position
    newest, oldest, most = 0, 0, 1
    for position, (kind, version) in enumerate(zip(kinds, versions, strict=True)):
        if kind == Kind.UPDATE:
            newest = version + 1
        while oldest < newest and last_use.get(oldest, -1) <= position:
            oldest += 1
        most = max(most, newest - oldest + 1)
    return most
