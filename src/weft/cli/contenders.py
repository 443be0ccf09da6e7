"""Contenders: what `weft compare` sets side by side, all with a step of as many microbatches.

a schedule and each of its variants    at the shape asked for
the program of a file                  where it has that shape
plans                                  with plans alone, each with its own costs
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from weft.errors import InputError
from weft.ir.graph import Graph
from weft.ir.program import Program
from weft.ir.versions import staleness
from weft.request import Costs, Limits, Refused, Request, Sizes, request_called, shape_of, variants
from weft.schedules import REGISTRY, one_f_one_b


class Terms(NamedTuple):
    """What all that is compared has in common."""

    devices: int
    microbatches: int
    graph: Graph


def contenders(
    names: Iterable[str], sizes: Sizes, costs: Costs
) -> tuple[list[Request | Refused], Terms]:
    """Those named, or all; where the options do not say, schedules take the shape of a file."""
    wanted = list(dict.fromkeys(names)) or [schedule.name for schedule in REGISTRY]
    asked = [request_called(name, costs=costs) for name in wanted]
    _check_plans(asked)
    programs = [request.program for request in asked if request.is_file]
    has_only_files = len(programs) == len(asked)
    if has_only_files:
        replace(asked[0], sizes=sizes).refuse_sizes()
    sizes = _shaped(sizes, programs)
    terms = _terms(sizes, programs[0] if has_only_files else None)
    found: list[Request | Refused] = []
    for request in asked:
        if request.is_file:
            reason = _refusal(request.program, terms)
            found.append(Refused(request, reason) if reason else request)
        else:
            found.extend(variants(replace(request, sizes=sizes)))
    return found, terms


def _check_plans(asked: Iterable[Request]) -> None:
    """Refuse plans beside anything else: they have costs of their own."""
    plans = [request for request in asked if request.given is not None]
    others = [request for request in asked if request.given is None]
    if plans and others:
        raise InputError(
            f"{plans[0].name} is a plan with costs of its own, {others[0].title} has none; compare"
            f" plans with plans, or export its program: weft export {plans[0].name}"
        )


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
    own = Sizes(devices=sizes.devices, microbatches=sizes.microbatches, graph=sizes.graph)
    shape = shape_of(one_f_one_b, own, Limits())
    graph = only.graph if only else shape.graph or Graph.chain(shape.devices)
    return Terms(shape.devices, shape.microbatches, graph)


def _refusal(program: Program, terms: Terms) -> str:
    """Why a file cannot be compared; what repeats does so for any number of microbatches."""
    is_asynchronous = program.period is not None or max(staleness(program)) > 0
    if is_asynchronous and program.period is None:
        return "ends before it settles; export it with more --updates"
    if program.devices != terms.devices:
        return f"has {program.devices} devices; the others have {terms.devices}"
    if not is_asynchronous and _step(program) != terms.microbatches:
        return f"has {_step(program)} microbatches; the others have {terms.microbatches}"
    if not _is_alike(program.graph, terms.graph):
        return "computes another graph of stages than the others"
    return ""


def _step(program: Program) -> int:
    """Microbatches of ordinary size in a program's step."""
    return program.microbatches // program.parts


def _is_alike(one: Graph, other: Graph) -> bool:
    """Whether both are chains, cut into however many stages, or else the same."""
    return (one.is_chain and other.is_chain) or one.edges == other.edges
