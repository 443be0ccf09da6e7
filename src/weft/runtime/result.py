"""Results: what a step gave, looked at only when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.cost import Share
from weft.errors import InputError
from weft.ir.actions import Action
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.ir.values import Value
from weft.runtime.lane.ring import PER_UPDATE, Ring, keys_of, window
from weft.runtime.ranks.clock import Recording
from weft.runtime.ranks.losses import LossReports, RunLosses
from weft.timeline import Timeline


class Span(NamedTuple):
    """What this process ran for an update, and for how many seconds, without what it waited for.

    An action, or, where it `is_closing`, what closed the gradients after that action. Updates are
    counted from where the program began.
    """

    action: Action
    update: int
    is_closing: bool
    seconds: float


@dataclass(frozen=True)
class Result:
    """What a step gave.

    norm        of all gradients before clipping, where they are clipped
    is_skipped  whether the update was left out because the loss or the norm is not finite
    """

    norm: Tensor | None
    is_skipped: bool
    _known: RunLosses = field(repr=False)
    _reported: LossReports = field(repr=False)
    _recording: Recording | None = field(repr=False)
    _program: Program = field(repr=False)

    @cached_property
    def losses(self) -> Tensor:
        """The weighted loss of every microbatch, on every rank; waits until they are known."""
        found = self._reported.wait(self._known)
        return torch.tensor(found, dtype=torch.float64, device="cpu").to(self._known.dtype)

    @cached_property
    def loss(self) -> Tensor:
        """The loss of the batch, on every rank."""
        return self.losses.sum()

    @cached_property
    def timeline(self) -> Timeline:
        """When this process did what; `Pipeline.gathered` has all ranks."""
        found = self._recorded.seconds()
        times = {row: (start, end) for row, _, start, end in found if row >= 0}
        return _timeline(self._program, times)

    def spans(self) -> Iterator[Span]:
        """What this process ran, in order on each of its threads."""
        return _spans(self._program, self._recorded)

    @property
    def _recorded(self) -> Recording:
        if self._recording is None:
            raise InputError(
                "the actions of an asynchronous step are spread over several calls; the flight that"
                " Pipeline.drain() returns has their timeline"
            )
        return self._recording


@dataclass(frozen=True, eq=False)
class Flight:
    """What ran between two drains: its first updates, on this process."""

    updates: int
    _ring: Ring = field(repr=False)
    _recording: Recording = field(repr=False)
    _since: int = field(repr=False)  # updates of the program before it
    _recorded: int = field(repr=False)  # updates at most

    @cached_property
    def timeline(self) -> Timeline:
        """When this process did what; `Pipeline.gathered` has all ranks."""
        ring, updates = self._ring, min(self.updates, self._recorded)
        program = window(ring.source, self._since, updates)
        rows = {key: row for row, key in enumerate(keys_of(program.actions))}
        known, times = [*keys_of(ring.program.actions)], {}
        for row, lap, start, end in self._recording.seconds():
            if row < 0:
                continue
            *rest, version, microbatch = known[row]
            if rest[0] in PER_UPDATE:
                version += lap * ring.updates - self._since
            else:
                microbatch += lap * ring.numbers - self._since * program.microbatches
            key = (*rest, version, microbatch)
            if key in rows:
                times[rows[key]] = (start, end)
        return _timeline(program, times)

    def spans(self) -> Iterator[Span]:
        """What this process ran, in order on each of its threads."""
        return _spans(self._ring.program, self._recording)


def _spans(program: Program, recording: Recording) -> Iterator[Span]:
    """What was recorded of a program that runs once in each lap."""
    for row, lap, start, end in recording.seconds():
        action = program.actions[max(row, ~row)]
        if action.kind in PER_UPDATE:
            update = action.version or 0
        else:
            update = (action.microbatch or 0) // program.microbatches
        yield Span(action, lap * program.steps + update, row < 0, end - start)


def _timeline(program: Program, times: Mapping[int, tuple[float, float]]) -> Timeline:
    """These times; a receive ends when whoever reads it has it, which starts then."""
    start, end = np.zeros((2, len(program)))
    for row, (begun, ended) in times.items():
        start[row], end[row] = begun, ended
    needs = program.dependencies
    is_receive = np.isin(program.actions.kind, (Kind.RECV_ACTIVATION, Kind.RECV_GRADIENT))
    is_own = needs.value != Value.TOKENS  # which another device reads
    for row in np.flatnonzero(is_receive[needs.producer] & is_own).tolist():
        receive, reader = int(needs.producer[row]), int(needs.consumer[row])
        if start[reader] and not 0 < start[receive] <= start[reader]:
            start[receive] = end[receive] = start[reader]
    return Timeline(program, Share().cost(program), start, end, is_measured=True)
