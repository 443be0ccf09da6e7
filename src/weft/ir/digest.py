"""Digest: what ranks compare before they run; equal programs have equal ones."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from weft.ir.actions import COLUMNS
from weft.ir.lanes import Period

if TYPE_CHECKING:
    from weft.ir.program import Program


def digest_of(program: Program) -> str:
    """All that a program says but for its name, as a number in hexadecimal digits."""
    parts = (
        [(stage.name, float(stage.cost), stage.backward, stage.is_whole_batch)
         for stage in program.graph.stages],
        program.microbatches,
        [(lane.stream, lane.channel and lane.channel.direction) for lane in program.lanes],
        program.is_stashing,
        program.parts,
    )  # fmt: skip
    digest = hashlib.sha256(repr(parts).encode())
    if program.ties or program.norms:
        digest.update(repr((program.ties, program.norms)).encode())
    if program.expert_groups:
        digest.update(f"expert groups {program.expert_groups}".encode())
    if program.graph.fixed:
        digest.update(repr(sorted(program.graph.fixed)).encode())
    period = program.period or Period((), (), 0)
    numbers = (
        program.graph.edges,
        program.placement.pipes,
        program.pipe_of,
        [(lane.device, *(lane.channel or (-1, -1))[:2]) for lane in program.lanes],
        [period.prologue, period.body],
        [period.microbatches, period.versions, period.repeats],
        program.bounds,
    )
    for array in (np.array(part, np.int64) for part in numbers):
        digest.update(repr(array.shape).encode() + array.tobytes())
    for array in (getattr(program.actions, name) for name in COLUMNS):
        digest.update(array.tobytes())
    return digest.hexdigest()
