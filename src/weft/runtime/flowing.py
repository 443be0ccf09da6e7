"""Flowing: a pipeline whose updates come between microbatches, and which is never empty.

    step    takes the microbatches of one update; what they cannot finish yet stays in flight
    drain   finishes what is in flight, with its updates, so that every stage has as many

Weights of each microbatch are of the versions that the program says, drained or not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.cost import Share as Unit
from weft.errors import WeftError
from weft.ir.program import Program
from weft.ir.versions import resident_versions
from weft.runtime.lane.bind import Setting
from weft.runtime.lane.flow import Flow, Item, flight, most_in_flight, run_of
from weft.runtime.lane.runner import Runner
from weft.runtime.lane.steps import Loss
from weft.runtime.ranks.clock import Recording
from weft.runtime.ranks.losses import Losses
from weft.runtime.ranks.world import World
from weft.runtime.stage.locks import Locks
from weft.runtime.stage.modules import refuse_unfrozen
from weft.runtime.stage.randomness import Draw
from weft.runtime.stage.shapes import StageForms
from weft.runtime.stage.stage import Stage
from weft.runtime.stage.values import Value
from weft.runtime.transport.loopback import Loopback
from weft.runtime.weights.delay import Delay
from weft.runtime.weights.factories import Makers
from weft.runtime.weights.groups import Part, Tie
from weft.runtime.weights.policy import Rules
from weft.runtime.weights.staleness import under_way
from weft.runtime.weights.ties import End
from weft.runtime.weights.versions import Stash
from weft.timeline import Timeline

RECORDED = 64  # updates behind each drain whose actions are recorded
SPARE = 8  # numbers of microbatches beyond those in flight

Data: TypeAlias = Sequence[Value]
Criterion: TypeAlias = Callable[..., Tensor]


@dataclass(frozen=True, eq=False)
class Flight:
    """What ran between two drains: its first updates, on this process."""

    updates: int
    _program: Program = field(repr=False)
    _recordings: Mapping[int, Recording] = field(repr=False)  # by device

    @cached_property
    def timeline(self) -> Timeline:
        """When this process did what; `Pipeline.gathered` has all ranks."""
        start, end = np.zeros((2, len(self._program)))
        for device, recording in self._recordings.items():
            mine = self._program.device_of == device
            start[mine], end[mine] = recording.seconds()
        cost = Unit().cost(self._program)
        return Timeline(self._program, cost, start, end, is_measured=True)


class Site(NamedTuple):
    """The stages of a model, and what of them and around them is in this process."""

    stages: Sequence[nn.Module]
    copies: Mapping[tuple[int, int], Stage]
    ties: Sequence[Sequence[End]]
    world: World
    forms: StageForms
    draw: Draw
    locks: Mapping[int, Locks]  # by stage


@dataclass(slots=True)
class Given:
    """What a user gave for each microbatch in flight, by its number."""

    targets: dict[int, Value] = field(default_factory=dict)
    shares: dict[int, float] = field(default_factory=dict)
    scales: dict[int, float] = field(default_factory=dict)


class Flowing:
    """The stages of a process in a program that does not flush."""

    def __init__(
        self,
        program: Program,
        rules: Rules,
        site: Site,
        makers: Makers,
        *,
        loss: Criterion,
        delay: Delay,
        device: torch.device,
    ) -> None:
        self._program, self._rules, self._delay = program, rules, delay
        self._world, self._draw, self._forms = site.world, site.draw, site.forms
        self._loss, self._device, self._locks = loss, device, site.locks
        self._copies = {stage: copy for (_, stage), copy in site.copies.items()}
        ring = ring_of(program)
        self._numbers = ring.microbatches * ring.steps
        self._given, self._local = Given(), Loopback()
        self._versions = rules.versions
        self.parts = self._parted(site, makers)
        setting = Setting(ring, site.world.transport, site.forms, Stage.forward)
        self._flows = {one: Flow(program, one) for one in range(program.devices)}
        self._runners = {
            one: Runner(
                program,
                setting,
                one,
                {place: site.copies[place] for place in program.placement.held[one]},
                self.parts,
                rules,
                versions=self._versions_of,
                on_loss=self._on_loss,
            )
            for one in site.world.devices
        }
        for copy in self._copies.values():
            copy.is_stashing, copy.dtype = program.is_stashing, delay.precision
        self.updates = 0  # that batches were given for
        self._runs: dict[int, int] = {}  # of the ledger, by update
        self._losses: dict[int, dict[int, Loss]] = {}
        self._is_broken = False
        self._begin_flight()

    # what a user asks for

    def step(self, inputs: Data, targets: Data, shares: Sequence[float], run: int) -> Losses:
        """Take the microbatches of one update, and run as far as they reach."""
        update, count = self.updates, self._program.microbatches
        refuse_unfrozen({s: one.module for s, one in self._copies.items() if not one.stashes})
        for stage, copy in self._copies.items():
            copy.loss = None if self._program.graph.successors[stage] else self._weighted
        first = (update - self._rules.origin) * count
        numbers = [(first + index) % self._numbers for index in range(count)]
        self._forms.go_on(numbers, inputs, targets)
        for stage, copy in self._copies.items():
            copy.begin(self._locks[stage])
            copy.outline(self._forms)
        for index, number in enumerate(numbers):
            self._given.targets[number], self._given.shares[number] = targets[index], shares[index]
            self._draw.places[number] = (update, index)
            for runner in self._runners.values():
                runner.batch.inputs[number] = inputs[index]
        page = self._world.ledger.open(run, count)
        self._rules.pages[update], self._runs[update] = page, run
        self._forget()
        self.updates += 1
        self._run(self._coming(first + count, is_watched=first < self._until))
        if update < self._delay.warmup:
            self.drain()
            self._restart()
        return page

    def drain(self) -> Flight:
        """Finish what is in flight, with its updates."""
        given = (self.updates - self._rules.origin) * self._program.microbatches
        self._run({one: [*flow.drained(given)] for one, flow in self._flows.items()})
        for part in self._all_parts:
            part.announce(self.updates)
        for part in self._all_parts:
            part.settle(self.updates)
        self._world.transport.end()
        landed = self._landed()
        if not self._program.is_stashing:
            self._restart()  # older versions, which the next forwards would use, are not kept
        return landed

    @property
    def optimizers(self) -> list[Optimizer]:
        return [part.optimizer for part in self._all_parts if part.optimizer is not None]

    @property
    def norm(self) -> Tensor | None:
        return next(iter(self._rules.norms.values()), None)

    @property
    def copies(self) -> dict[int, int]:
        """The most copies of any of its weights that each stage has."""
        return {
            stage: max((part.stash.copies for part in parts), default=1)
            for stage, parts in self.parts.items()
        }

    @property
    def _all_parts(self) -> list[Part]:
        return [part for parts in self.parts.values() for part in parts]

    def _forget(self) -> None:
        """Drop what is known of updates that are over in all parts of this process."""
        least = min((part.stash.newest for part in self._all_parts), default=self.updates)
        if self._rules.scaling is not None:
            least = min(least, self._rules.scaling.known)
        self._rules.forget(least)
        self._runs = {update: run for update, run in self._runs.items() if update >= least}

    # building

    def _parted(self, site: Site, makers: Makers) -> dict[int, list[Part]]:
        """The parts of every stage that is here: its own weights, then its ends of tied ones."""
        tied = {end: number for number, ends in enumerate(site.ties) for end in ends}
        parts: dict[int, list[Part]] = {}
        for stage, copy in self._copies.items():
            named = [*copy.module.named_parameters()]
            own = [(name, weight) for name, weight in named if End(stage, name) not in tied]
            ends = [(name, weight) for name, weight in named if End(stage, name) in tied]
            made = [self._part(site, makers, stage, own)]
            made += [
                self._part(site, makers, stage, [end], tied[End(stage, end[0])]) for end in ends
            ]
            parts[stage] = [part for part in made if part is not None]
            copy.stashes = [part.stash for part in parts[stage]]
        return parts

    def _part(
        self,
        site: Site,
        makers: Makers,
        stage: int,
        named: Sequence[tuple[str, nn.Parameter]],
        number: int | None = None,
    ) -> Part | None:
        """Some weights of a stage, or its end of the tied weight of this number."""
        if not any(weight.requires_grad for _, weight in named):
            return None
        ends = [End(stage, "")] if number is None else site.ties[number]
        home, places = ends[0].stage, places_of(site.stages)
        stash = Stash(
            named,
            resident_versions(self._program)[home],
            dtype=self._delay.precision,
            lead=self._versions.lead(home) if self._delay.predict else 0,
            since=self._delay.warmup,
        )
        tie = None
        if number is not None:
            devices = [self._program.placement.pipes[0][end.stage] for end in ends]
            index = [end.stage for end in ends].index(stage)
            ahead = under_way(self._program)
            tie = Tie(number, devices, index, site.world.transport, self._local, ahead)
        return Part(
            stage if number is None else self._program.stages + number,
            home,
            stash,
            self._rules,
            places=[places[End(stage, name)] for name, weight in named if weight.requires_grad],
            made=makers.both(named),
            tie=tie,
        )

    def _versions_of(self, stage: int, microbatch: int) -> tuple[int, ...]:
        """What each part of a stage uses; a tied weight is as its first stage has it."""
        origin, parts = self._rules.origin, self.parts[stage]
        return tuple([origin + self._versions.of(part.stage, microbatch) for part in parts])

    # running

    def _coming(self, given: int, *, is_watched: bool) -> dict[int, list[Item]]:
        """What comes next on each device here, and on all others if they are watched."""
        is_watched = is_watched or self._world.transport.is_ordered
        devices = self._flows if is_watched else self._runners
        return {device: [*self._flows[device].until(given)] for device in devices}

    def _run(self, items: Mapping[int, list[Item]]) -> None:
        """Run these; what fails on the way leaves microbatches that nothing can finish."""
        if self._is_broken:
            raise WeftError("an earlier step failed with microbatches in flight; begin anew")
        self._is_broken = True
        self._run_all(items)
        self._is_broken = False

    def _run_all(self, items: Mapping[int, list[Item]]) -> None:
        for device, found in items.items():
            self._log[device] += [item for item in found if item.microbatch < self._until]
        transport = self._world.transport
        if isinstance(transport, Loopback):
            self._run_in_turn(items, transport)
            return
        (runner,) = self._runners.values()
        if transport.is_ordered:
            transport.go_on(*runner.messages(items))
        runner.run(items[runner.device], self._recordings[runner.device], self._until)

    def _run_in_turn(self, items: Mapping[int, list[Item]], waiting: Loopback) -> None:
        """Every device in turn, as far as it gets, until all have ended."""
        left = {device: deque(items[device]) for device in self._runners}
        while any(left.values()):
            before = sum(map(len, left.values()))
            for device, runner in self._runners.items():
                recording, mine = self._recordings[device], left[device]
                while mine and runner.is_ready(mine[0], waiting):
                    runner.run([mine.popleft()], recording, self._until)
            for part in self._all_parts:
                part.announce()
            if before == sum(map(len, left.values())):
                raise WeftError("the program stands still; verification should tell why")

    def _weighted(self, output: Any, number: int) -> Tensor:
        update, _ = self._draw.places[number]
        scale = self._given.scales[number] = self._rules.scale(update)
        wanted = self._given.targets[number].to(self._device).arguments
        loss = self._loss(output, *wanted) * self._given.shares[number]
        return loss if scale == 1 else loss * scale

    def _on_loss(self, microbatch: int, loss: Loss) -> None:
        """Tell the losses of an update once all of them are known."""
        update, index = self._draw.places[microbatch % self._numbers]
        found = self._losses.setdefault(update, {})
        found[index] = loss / self._given.scales[microbatch % self._numbers]
        if len(found) == self._program.microbatches:
            self._world.ledger.tell(self._runs.pop(update), self._losses.pop(update))

    # flights

    def _restart(self) -> None:
        """Let the next update be the first of a flow."""
        self._rules.origin = self.updates
        for part in self._all_parts:
            part.stash.restart()
        for flow in self._flows.values():
            flow.restart()
        self._begin_flight()

    def _begin_flight(self) -> None:
        self._since = self.updates
        relative = self.updates - self._rules.origin
        self._until = (relative + RECORDED) * self._program.microbatches
        self._log: dict[int, list[Item]] = {device: [] for device in self._flows}
        self._recordings = {device: Recording(0, self._device) for device in self._runners}

    def _landed(self) -> Flight:
        """The program and the times of what has run since the last drain."""
        first = self._since - self._rules.origin
        program = run_of(self._program, self._log, first)
        landed = Flight(self.updates - self._since, program, self._recordings)
        self._begin_flight()
        return landed


def ring_of(program: Program) -> Program:
    """The program in which each microbatch stands for all that have its number.

    Numbers come again with the body, so that what it does for a microbatch is the same each time.
    """
    assert program.period is not None
    step = program.period.microbatches
    count = most_in_flight(program) + max(step, SPARE)
    return flight(program, -(-count // step) * step)


def places_of(stages: Sequence[nn.Module]) -> dict[End, int]:
    """Where each weight stands in the model."""
    ends = [End(index, name) for index, s in enumerate(stages) for name, _ in s.named_parameters()]
    return {end: place for place, end in enumerate(ends)}
