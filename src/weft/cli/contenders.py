"""Contenders: what `weft compare` sets side by side, all with a step of as many microbatches.

a schedule and each of its variants    at the shape asked for
the program of a file                  where it has that shape
any of them that does not fit          with what makes it fit
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias

from weft.cli.options import Sizes
from weft.cli.requests import is_file, printable, program_of, refuse_sizes, schedule_named, shape_of
from weft.explain import Relief
from weft.ir.graph import Graph
from weft.ir.program import Program
from weft.ir.versions import staleness
from weft.schedules import REGISTRY, Schedule, one_f_one_b
from weft.simulate import settling

Make: TypeAlias = Callable[[], Program]


class Contender(NamedTuple):
    """What is compared: of a schedule, or of a file.

    microbatches  of a step, whatever the program itself calls a step
    program       what is timed
    run           of what does not flush, what settles
    """

    name: str
    variant: str
    microbatches: int
    program: Make
    run: Make | None = None
    relief: Relief = Relief.NONE

    @property
    def title(self) -> str:
        return f"{_titled(self.name, self.variant)} {self.relief.value}".rstrip()


class Refused(NamedTuple):
    """What has no such shape, and why."""

    name: str
    variant: str
    reason: str

    @property
    def title(self) -> str:
        return _titled(self.name, self.variant)


class Terms(NamedTuple):
    """What all that is compared has in common."""

    devices: int
    microbatches: int
    graph: Graph


def contenders(names: Iterable[str], sizes: Sizes) -> list[Contender | Refused]:
    """Those named, or all; where the options do not say, schedules take the shape of a file."""
    wanted = list(dict.fromkeys(names)) or [schedule.name for schedule in REGISTRY]
    files = {name: program_of(name, Sizes()) for name in wanted if is_file(name)}
    if len(files) == len(wanted):
        refuse_sizes(wanted[0], sizes)
    sizes = _shaped(sizes, files.values())
    terms = _terms(sizes, next(iter(files.values())) if len(files) == len(wanted) else None)
    found: list[Contender | Refused] = []
    for name in wanted:
        if name in files:
            found.append(_of_file(printable(name), files[name], terms))
        else:
            found.extend(_of_schedule(schedule_named(name), sizes))
    return found


# schedules


def _of_schedule(schedule: Schedule, sizes: Sizes) -> Iterator[Contender | Refused]:
    """The schedule and each of its variants, at the sizes that it can take."""
    least, loops = schedule.stages_per_device[0], schedule.stages_for(sizes.stages_per_device)
    own = replace(
        sizes,
        stages_per_device=least if sizes.graph else loops,
        pipes=sizes.pipes if schedule.takes_pipes else 1,
    )
    for variant in (sizes.variant,) if sizes.variant else ("", *schedule.variants):
        shape = shape_of(schedule, replace(own, variant=variant))
        refusal = schedule.accepts(shape)
        if refusal is not None:
            reason = f"{refusal.reason}; nearest: {shape.changes_to(refusal.nearest)}"
            yield Refused(schedule.name, variant, reason)
            continue
        yield Contender(
            name=schedule.name,
            variant=variant,
            microbatches=shape.microbatches,
            program=partial(schedule.program, shape),
            run=partial(settling, schedule, shape) if schedule.is_asynchronous else None,
        )


# files


def _shaped(sizes: Sizes, programs: Iterable[Program]) -> Sizes:
    """The sizes; of what they leave open, that of the first program."""
    for program in programs:
        sizes = replace(
            sizes,
            devices=sizes.devices or (None if sizes.graph else program.devices),
            microbatches=sizes.microbatches or (None if program.period else _step(program)),
        )
    return sizes


def _terms(sizes: Sizes, only: Program | None) -> Terms:
    """Those of the options; of files alone, those of the first."""
    shape = shape_of(
        one_f_one_b,
        Sizes(devices=sizes.devices, microbatches=sizes.microbatches, graph=sizes.graph),
    )
    graph = only.graph if only else shape.graph or Graph.chain(shape.devices)
    return Terms(shape.devices, shape.microbatches, graph)


def _of_file(title: str, program: Program, terms: Terms) -> Contender | Refused:
    """What repeats does so for any number of microbatches; all else has those that it has."""
    is_late = program.period is not None or max(staleness(program)) > 0
    reason = ""
    if is_late and program.period is None:
        reason = "ends before it settles; export it with more --updates"
    elif program.devices != terms.devices:
        reason = f"has {program.devices} devices; the others have {terms.devices}"
    elif not is_late and _step(program) != terms.microbatches:
        reason = f"has {_step(program)} microbatches; the others have {terms.microbatches}"
    elif not _is_alike(program.graph, terms.graph):
        reason = "computes another graph of stages than the others"
    if reason:
        return Refused(title, "", reason)
    make = partial(_itself, program)
    return Contender(title, "", terms.microbatches, make, make if is_late else None)


def _itself(program: Program) -> Program:
    return program


def _step(program: Program) -> int:
    """Microbatches of ordinary size in a program's step."""
    return program.microbatches // program.parts


def _is_alike(one: Graph, other: Graph) -> bool:
    """Whether both are chains, cut into however many stages, or else the same."""
    return (one.is_chain and other.is_chain) or one.edges == other.edges


def _titled(name: str, variant: str) -> str:
    return f"{name} ({variant})" if variant else name
