"""Context: what the rules share about one program, each part computed once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from weft.cost import Cost
from weft.ir.actions import Action, Actions
from weft.ir.earliest import Precedence, Seconds, earliest
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.lower import Groups, unwired
from weft.notation.tokens import token, written
from weft.verify.absence import Absence, absences
from weft.verify.channels import Blocking
from weft.verify.coverage import Coverage


class Breach(NamedTuple):
    """A place where a rule does not hold; `row` is None where an action is missing."""

    device: int
    action: str
    message: str
    row: int | None = None


class Limits(NamedTuple):
    """What the program must not exceed; None where it may."""

    channel_depth: int | None = None
    cost: Cost | None = None
    versions: Sequence[int] | None = None
    groups: Groups | None = None  # of transfers, in the program as it was given


@dataclass(frozen=True, eq=False)
class Context:
    """A program, the limits it is held to, and what the rules ask of both."""

    program: Program
    limits: Limits
    source: Program  # as it was given: `program` is it, unrolled where it repeats

    def without_rows(self, rows: Iterable[int | None]) -> Context:
        """The same without these actions, and without what shares a slot with them."""
        program = self.program
        slots = {int(program.slot_of[row]) for row in rows if row is not None}
        kept = ~np.isin(program.slot_of, list(slots))
        lanes = {
            lane: program.actions.take(np.flatnonzero(kept & (program.lane_of == index)))
            for index, lane in enumerate(program.lanes)
        }
        return replace(self, program=program.with_lanes(lanes))

    def without_wires(self) -> Context:
        """The same without sends and receives."""
        return replace(self, program=unwired(self.program))

    @cached_property
    def has_one_wire(self) -> bool:
        """Whether transfers of a device wait for each other."""
        return any(lane.is_one_wire for lane in self.program.lanes)

    # words

    @cached_property
    def title(self) -> str:
        devices = self.program.devices
        return f"{self.program.name} on {devices} device{'s' if devices > 1 else ''}"

    def token(self, row: int) -> str:
        """The word for an action of the program."""
        return token(self.program, row)

    def word(
        self,
        stage: int,
        kind: Kind,
        microbatch: int,
        *,
        edge: int | None = None,
        segment: int | None = None,
    ) -> str:
        """The word for an action that the program may lack."""
        action = Actions.collect([Action(stage, kind, microbatch, edge=edge, segment=segment)])
        return written(action, self.program.graph.edges)[0]

    def at(self, row: int, message: str) -> Breach:
        """A breach at an action; `message` continues the title."""
        device = int(self.program.device_of[row])
        return Breach(device, self.token(row), f"{self.title}: {message}", row)

    def without(self, device: int, action: str, message: str) -> Breach:
        """A breach by an action that is not there."""
        return Breach(device, action, f"{self.title}: {message}")

    # what is where

    @cached_property
    def coverage(self) -> Coverage:
        return Coverage(self.program)

    @cached_property
    def absences(self) -> tuple[Absence, ...]:
        """Computations that the graph asks for and the program lacks."""
        return tuple(absences(self.coverage))

    def holder(self, stage: int, microbatch: int) -> int:
        """The device on which a stage works on a microbatch."""
        pipe = self.program.pipe_of[microbatch % self.program.microbatches]
        return int(self.program.placement.table[pipe, stage])

    # how it runs

    @cached_property
    def precedence(self) -> Precedence:
        return self.program.precedence(np.zeros(len(self.program.dependencies)))

    @cached_property
    def start(self) -> Seconds:
        """When each slot starts if every one takes a second; infinity where it never does."""
        return earliest(self.precedence, np.ones(len(self.program.first_of_slot)))

    @cached_property
    def blocking(self) -> Blocking:
        """The program with sends that block."""
        return Blocking.of(self.program)
