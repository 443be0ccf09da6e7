"""A bound from one device alone, by CP-SAT: its own actions, in the best of all orders.

    device 0   F0 F1 F2 ......... I0 W0 F3 I1 W1 F4 ...
               |---- the turn ----|

All other devices have room and time for everything, so that their stages are only delays: no order
of the whole problem ends sooner. Unlike the formulas, it sees how the rounds that a cap allows get
into each other's way, and it stays small however many devices there are.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import ceil, floor
from typing import TYPE_CHECKING

from weft.ir.placement import Placement
from weft.plan.synthesis.bounds import Paths, by_device
from weft.plan.synthesis.constraints import Constraints, exact_unit, rounded_down
from weft.plan.synthesis.exact import is_exact_in_memory, modelled
from weft.plan.synthesis.problem import Delays, Problem
from weft.plan.synthesis.solver import Search, Verdict, solutions

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel

SLIGHT = 1e-6  # of a unit


def bound_of_one(problem: Problem, longest: float, search: Search) -> float:
    """Seconds that every order takes at least, by the device that the formulas know most about.

    Some order of the problem takes `longest` seconds.
    """
    least = by_device(problem)
    device = least.index(max(least))
    paths, stages = Paths.of(problem), problem.stages_of[device]
    if not any(paths.whole(stage) - paths.turn[stage] for stage in stages):
        return 0.0  # it has nothing to put in order
    alone = _alone(problem, device)
    if not is_exact_in_memory(alone):
        return 0.0
    tied = _with_turn(rounded_down(alone, exact_unit(problem)), paths.turn[stages[-1]])
    before = paths.head[stages[0]] - problem.overhead
    horizon = ceil((longest - before) / tied.unit + SLIGHT)
    made = modelled(alone, tied, floor((least[device] - before) / tied.unit), horizon)
    for index, stage in enumerate(stages):
        action = (tied.stages + index + 1) * tied.microbatches - 1  # the last I of the stage
        after = tied.duration[action] + _floor(paths.tail[stage], tied)
        made.model.add(made.last >= made.starts[action] + int(after))
    return before + ceil(_proved(made.model, search) - SLIGHT) * tied.unit


def _proved(model: CpModel, search: Search) -> float:
    """The bound on the objective; its solutions are of no interest."""
    found = solutions(model, [], search)
    while True:
        try:
            next(found)
        except StopIteration as done:
            verdict: Verdict = done.value
            return verdict.bound


def _alone(problem: Problem, device: int) -> Problem:
    """The stages of one device; what lies between two of them is a delay."""
    paths, stages = Paths.of(problem), problem.stages_of[device]
    there, back = [], []
    for stage, later in pairwise(stages):
        away = paths.head[later] - paths.head[stage] - paths.forward[stage]
        beyond = paths.forward[later] + paths.turn[later] + paths.input_grad[later]
        there.append(max(0.0, away + problem.overhead))
        back.append(max(0.0, paths.turn[stage] - away - beyond + problem.overhead))
    return replace(
        problem,
        placement=Placement(((0,) * len(stages),)),
        forward=tuple(problem.forward[stage] for stage in stages),
        input_grad=tuple(problem.input_grad[stage] for stage in stages),
        weight_grad=tuple(problem.weight_grad[stage] for stage in stages),
        held=tuple(problem.held[stage] for stage in stages),
        caps=(problem.caps[device],),
        latency=Delays(tuple(there), tuple(back)),
        known=None,
    )


def _with_turn(tied: Constraints, seconds: float) -> Constraints:
    """Where I of the last stage waits for as long after its F."""
    turn, count = _floor(seconds, tied), tied.microbatches
    reads, readers = [*tied.reads], [*tied.readers]
    for microbatch in range(count):
        forward = (tied.stages - 1) * count + microbatch
        gradient = (2 * tied.stages - 1) * count + microbatch
        reads[gradient] = ((forward, turn),)
        readers[forward] = ((gradient, turn),)
    return replace(tied, reads=reads, readers=readers)


def _floor(seconds: float, tied: Constraints) -> float:
    """In whole units, rounded down."""
    return float(floor(seconds / tied.unit + SLIGHT))
