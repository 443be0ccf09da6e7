"""A request: a schedule at a shape, or the program of a file, with passes and costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from weft.cost import Cost
from weft.errors import InputError, ProgramError, UnknownSchedule, WeftError
from weft.explain import reliefs
from weft.ir.kinds import Kind, Stream
from weft.ir.program import Program
from weft.jitter import Jittered, Variation, jittered
from weft.lower import executable, overlapping, wires
from weft.notation import read_program
from weft.request.costs import Costs
from weft.request.passes import Passes
from weft.request.sizes import Limits, Sizes, shape_of
from weft.request.values import refuse
from weft.schedules import REGISTRY, Schedule, Shape
from weft.settled import settling
from weft.simulate import Steady, simulate, steady
from weft.timeline import Timeline
from weft.verify import Report, check

MOST_NAME = 80  # characters


@dataclass(frozen=True)
class Request:
    """What somebody asks for; everything is found out when it is asked for, and once.

    given  the program itself, where neither a schedule makes it nor a file has it
    """

    name: str
    sizes: Sizes = field(default_factory=Sizes)
    passes: Passes = field(default_factory=Passes)
    costs: Costs = field(default_factory=Costs)
    limits: Limits = field(default_factory=Limits)
    given: Program | None = field(default=None, repr=False)

    @property
    def title(self) -> str:
        """The name, with its variant and what passes add."""
        variant = f" ({self.sizes.variant})" if self.sizes.variant else ""
        return f"{printable(self.name)}{variant} {self.passes}".rstrip()

    @cached_property
    def is_file(self) -> bool:
        """Whether the program is given or that of a file, not of a schedule."""
        return self.given is not None or is_file(self.name)

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule of a name that is not that of a file."""
        try:
            return REGISTRY[self.name]
        except UnknownSchedule as error:
            raise UnknownSchedule(f"{error} There is no file of that name either.") from None

    @cached_property
    def shape(self) -> Shape:
        """The shape asked for, with the schedule's own defaults."""
        return shape_of(self.schedule, self.sizes, self.limits)

    @cached_property
    def program(self) -> Program:
        """The program as the schedule makes it or the file has it, without what passes add."""
        return self._made()

    def proved(self) -> tuple[Program, Report]:
        """The same in full, and its proof; ProgramError where it breaks a rule.

        What does not fit into memory can still be timed and drawn, which may show why.
        """
        report = check(self.program)
        return self.limits.unfolded(self.program), report

    def _made(self) -> Program:
        if not self.is_file:
            return self.schedule.program(self.shape)
        self.refuse_sizes()
        program = read_program(self.name) if self.given is None else self.given
        return program.renamed(printable(program.name[:MOST_NAME]))

    def refuse_sizes(self) -> None:
        """Refuse options of a shape beside a program that has one."""
        refuse(f"{self.name} is a program with a shape of its own", self.sizes.asked)

    def timed(self) -> tuple[Timeline, Report]:
        """Its timeline with what the passes add, and the proof of that."""
        if self.passes.asked:
            return self._with_passes(self.program)
        program, report = self.proved()
        return _simulated(program, self.costs), report

    def stepped(self) -> tuple[Timeline, Report]:
        """The same as a whole step: with every update, and the sums that a layout's copies need.

        Sums are on a stream of their own, so that they overlap with what other stages still do; the
        step ends when all weights are new. What updates between its microbatches has all that
        already, but for sums with copies of the whole program.
        """
        if self.passes.steps is not None or (self.program.actions.kind == Kind.UPDATE).any():
            return self.timed()
        return replace(self, passes=replace(self.passes, steps=1)).timed()

    def in_streams(self) -> tuple[Timeline, Report]:
        """The same with every stream in use: pairs cut into segments, all offloaded, and wires."""
        if any(lane.stream in (Stream.WIRE, Stream.OFFLOAD) for lane in self.program.lanes):
            raise InputError(
                f"{self.program.name} has sends or copies of its own, as ranks run it; it is drawn"
                f" with --lowered"
            )
        passes = self.passes.for_streams(self.program)
        timeline, report = replace(self, passes=passes)._with_passes(self.program)
        return simulate(wires(timeline.program), timeline.cost), report

    def lowered(self) -> tuple[Timeline, Report]:
        """The same as ranks run it: with sends, sums, updates and copies on lanes of their own."""
        program, costs = self.program, self.costs
        if self.passes.asked:
            program = self._with_passes(program)[0].program
            costs = self.passes.priced(costs)
        else:
            check(program)
        layout = costs.layout
        has_copies = layout.copies > 1
        is_sharded = has_copies and layout.is_sharded
        program = executable(program, is_sharded=is_sharded, is_replicated=has_copies)
        report = check(program)
        return _simulated(self.limits.unfolded(program), costs), report

    def with_passes(self) -> Program:
        """The program in full with what the passes add."""
        costs = self.passes.priced(self.costs)
        return self.passes.lowered(self.limits.unfolded(self.program), costs)

    def timeline_of(self, program: Program) -> Timeline:
        """Another program, proved and timed in the same way."""
        if self.passes.asked:
            return self._with_passes(program)[0]
        check(program)
        return _simulated(self.limits.unfolded(program), self.costs)

    def settled(self) -> Steady | None:
        """What an asynchronous run settles into, where passes keep its order."""
        program = self._repeating()
        return None if program is None else steady(program, self._cost_of(program))

    def jittered(self, asked: str | float, timeline: Timeline) -> Jittered:
        """How much longer its steps are where durations vary so much, or as they were `measured`.

        The timeline is its own; of what settles, an update counts.
        """
        program, cost = timeline.program, timeline.cost
        if repeating := self._repeating():
            program, cost = repeating, self._cost_of(repeating)
        variation = Variation.measured(cost) if isinstance(asked, str) else asked
        return jittered(program, cost, variation)

    def _repeating(self) -> Program | None:
        """What settles, if anything does."""
        if not self.passes.keeps_order:
            return None
        if self.is_file:
            program = self.program if self.program.period else None
        else:
            is_asynchronous = self.schedule.is_asynchronous
            program = settling(self.schedule, self.shape) if is_asynchronous else None
        return program and self.passes.recomputed(program)

    def _cost_of(self, program: Program) -> Cost:
        return self.passes.priced(self.costs).of(program)

    def _with_passes(self, program: Program) -> tuple[Timeline, Report]:
        costs = self.passes.priced(self.costs)
        program = self.passes.lowered(self.limits.unfolded(program), costs)
        report = check(program)
        return _simulated(program, costs), report


def _simulated(program: Program, costs: Costs) -> Timeline:
    cost = costs.of(program)
    return simulate(overlapping(program, cost), cost)


class Refused(NamedTuple):
    """What cannot be done, and why."""

    request: Request
    reason: str


class Attempt(NamedTuple):
    """What a request comes to."""

    request: Request
    timeline: Timeline
    proof: Report


def variants(request: Request) -> Iterator[Request]:
    """The schedule and each of its variants, or the one asked for, with the stages they take."""
    schedule, sizes = request.schedule, request.sizes
    stages = schedule.stages_for(sizes.stages_per_device)
    own = replace(
        sizes,
        stages_per_device=schedule.stages_per_device[0] if sizes.graph else stages,
        pipes=sizes.pipes if schedule.takes_pipes else 1,
    )
    for variant in (sizes.variant,) if sizes.variant else ("", *schedule.variants):
        yield replace(request, sizes=replace(own, variant=variant))


def attempts(request: Request) -> Iterator[Attempt | Refused]:
    """The request, and where it does not fit the ways in which it does; or why there is none."""
    try:
        if reason := _refusal(request):
            yield Refused(request, reason)
            return
        timeline, proof = request.timed()
        yield Attempt(request, timeline, proof)
        for relief, again in reliefs(timeline) if request.given is None else ():
            eased = replace(request, passes=Passes.of(relief))
            yield Attempt(eased, again, check(again.program))
    except ProgramError as error:
        yield Refused(request, str(error.findings[0]))
    except WeftError as error:
        yield Refused(request, str(error))


def _refusal(request: Request) -> str:
    """Why a schedule does not take the shape asked for, and which it takes of that graph."""
    refusal = None if request.is_file else request.schedule.accepts(request.shape)
    if refusal is None:
        return ""
    if refusal.nearest.graph != request.shape.graph:
        return refusal.reason  # which names the schedules that do
    return f"{refusal.reason}; nearest: {request.shape.changes_to(refusal.nearest)}"


def is_file(name: str) -> bool:
    """Whether a name is that of a file, not of a schedule."""
    if any(name == schedule.name for schedule in REGISTRY):
        return False
    path = Path(name)
    return path.is_file() or len(path.parts) > 1 or bool(path.suffix)


def printable(name: str) -> str:
    """A name out of a file, or of one, without what a terminal would obey."""
    return "".join(sign if sign.isprintable() else "?" for sign in name)
