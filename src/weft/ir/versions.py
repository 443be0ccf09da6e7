"""Weight versions of a program: how many are resident, how stale the ones in use are."""

from __future__ import annotations

import numpy as np

from weft.ir.kinds import Kind
from weft.ir.program import Program


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
            rows = np.flatnonzero(mine & (actions.version >= 0))
            kinds, versions = actions.kind[rows].tolist(), actions.version[rows].tolist()
            most[stage] = max(most[stage], _most_alive(kinds, versions))
    return most


def staleness(program: Program) -> list[int]:
    """For each stage, the most updates that a forward lags behind its own step."""
    worst = [0] * program.stages
    if not _has_versions(program):
        return worst
    actions = program.actions
    forward = np.flatnonzero((actions.kind == Kind.F) & (actions.version >= 0))
    lag = actions.microbatch[forward] // program.microbatches - actions.version[forward]
    for stage, behind in zip(actions.stage[forward].tolist(), lag.tolist(), strict=True):
        worst[stage] = max(worst[stage], behind)
    return worst


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
