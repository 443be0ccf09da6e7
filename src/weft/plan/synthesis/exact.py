"""The exact model: a start for every action, and the best of all orders.

Microbatches keep their order within a stage and kind. With one stage on each device the cap is
a precedence: F of microbatch m + C begins after W of m; with several it is a Cumulative.
"""

from __future__ import annotations

from collections.abc import Generator
from fractions import Fraction
from itertools import pairwise, product
from math import ceil, floor, lcm
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from weft.plan.synthesis.constraints import FINEST, Constraints, Starts
from weft.plan.synthesis.problem import NEARLY, Problem
from weft.plan.synthesis.solver import Search, Verdict, solutions

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar

Lanes: TypeAlias = list[list[list[int]]]  # for each device, groups of actions

MOST_DEMAND = 1_000_000


class Model(NamedTuple):
    """Starts of all actions, and `last`, which is at least the end of them all."""

    model: CpModel
    starts: list[IntVar]
    last: IntVar

    def hint(self, seed: Starts) -> None:
        """Begin with this schedule."""
        for start, time in zip(self.starts, seed, strict=True):
            self.model.add_hint(start, int(time))


def exact(
    problem: Problem, tied: Constraints, seed: Starts, least: float, search: Search
) -> Generator[list[int], None, Verdict]:
    """Better schedules than the seed, in whole units, and what is proved in the end."""
    made = modelled(problem, tied, int(least), int(tied.length(seed)))
    made.hint(seed)
    return solutions(made.model, made.starts, search)


def is_exact_in_memory(problem: Problem) -> bool:
    """Whether the model's demands are the problem's own, not rounded up."""
    return all(_demands(problem, device).is_exact for device in range(problem.devices))


def modelled(
    problem: Problem, tied: Constraints, least: int, horizon: int, lanes: Lanes | None = None
) -> Model:
    """All schedules that end between `least` and the horizon; the last end is minimised.

    With `lanes`, only those in which each device runs its groups of actions one after another.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    starts = _starts(model, tied, horizon)
    for action, reads in enumerate(tied.reads):
        for other, delay in reads:
            wait = int(tied.duration[other] + delay)
            model.add(starts[action] >= starts[other] + wait)
    _keep_order(model, tied, starts)
    _keep_apart(model, tied, starts, lanes or _whole(tied))
    for device, stages in enumerate(problem.stages_of):
        if len(stages) == 1:
            _limit_by_order(model, problem, tied, starts, device)
        else:
            _limit_by_level(model, problem, tied, starts, device)
            _limit_stages(model, problem, tied, starts, device)
    last = model.new_int_var(least, horizon, "last")
    microbatches = tied.microbatches
    for action in range(2 * len(tied) // 3 + microbatches - 1, len(tied), microbatches):
        model.add(last >= starts[action] + int(tied.duration[action]))
    model.minimize(last)
    return Model(model, starts, last)


def _starts(model: CpModel, tied: Constraints, horizon: int) -> list[IntVar]:
    """Each between what must come before it and what must come after."""
    heads, tails = _heads(tied), _heads(tied.mirrored())
    found = []
    for action, (head, tail) in enumerate(zip(heads, tails, strict=True)):
        latest = horizon - int(tail) - int(tied.duration[action])
        found.append(model.new_int_var(int(head), max(int(head), latest), ""))
    return found


def _heads(tied: Constraints) -> list[float]:
    """The earliest start of each action: its chain, and the microbatches before it."""
    heads, last = [0.0] * len(tied), tied.microbatches - 1
    is_mirrored = tied.rank[-1] < 0
    step = -1 if is_mirrored else 1
    for action in sorted(range(len(tied))[::step], key=tied.rank.__getitem__):
        head = 0.0
        for other, delay in tied.reads[action]:
            head = max(head, heads[other] + tied.duration[other] + delay)
        if action % tied.microbatches != (last if is_mirrored else 0):
            head = max(head, heads[action - step] + tied.duration[action])
        heads[action] = head
    return heads


def _keep_order(model: CpModel, tied: Constraints, starts: list[IntVar]) -> None:
    for action in range(1, len(tied)):
        if action % tied.microbatches:
            model.add(starts[action] >= starts[action - 1] + int(tied.duration[action]))


def _whole(tied: Constraints) -> Lanes:
    """Every device with one group of all its actions: any order may be best."""
    lanes: Lanes = [[[]] for _ in tied.caps]
    for action, device in enumerate(tied.device):
        lanes[device][0].append(action)
    return lanes


def _keep_apart(model: CpModel, tied: Constraints, starts: list[IntVar], lanes: Lanes) -> None:
    for groups in lanes:
        for group in groups:
            lengths = [(starts[action], int(tied.duration[action])) for action in group]
            if len(group) > 1:
                model.add_no_overlap(
                    model.new_fixed_size_interval_var(start, length, "")
                    for start, length in lengths
                    if length
                )
        for before, after in pairwise(groups):
            for action, other in product(before, after):
                model.add(starts[other] >= starts[action] + int(tied.duration[action]))


def _limit_by_order(
    model: CpModel, problem: Problem, tied: Constraints, starts: list[IntVar], device: int
) -> None:
    (stage,) = problem.stages_of[device]
    held, microbatches = problem.held[stage], tied.microbatches
    if not held:
        return
    most = floor(problem.caps[device] * (1 + NEARLY) / held)
    first = stage * microbatches
    last = 2 * problem.stages * microbatches + first
    for microbatch in range(microbatches - most):
        ends = starts[last + microbatch] + int(tied.duration[last + microbatch])
        model.add(starts[first + microbatch + most] >= ends)


def _limit_by_level(
    model: CpModel, problem: Problem, tied: Constraints, starts: list[IntVar], device: int
) -> None:
    demands = _demands(problem, device)
    microbatches = tied.microbatches
    lives, amounts = [], []
    for stage, demand in zip(problem.stages_of[device], demands.of_stages, strict=True):
        for microbatch in range(microbatches):
            first = stage * microbatches + microbatch
            last = 2 * problem.stages * microbatches + first
            length = int(tied.duration[last])
            life = model.new_int_var(0, 1 << 40, "")
            end = starts[last] + length
            lives.append(model.new_interval_var(starts[first], life, end, ""))
            amounts.append(demand)
    model.add_cumulative(lives, amounts, demands.cap)


class _Demands(NamedTuple):
    """A cap and what stages hold, as whole numbers."""

    cap: int
    of_stages: tuple[int, ...]
    is_exact: bool


def _demands(problem: Problem, device: int) -> _Demands:
    held = [problem.held[stage] for stage in problem.stages_of[device]]
    cap = problem.caps[device] * (1 + NEARLY)
    if not any(held):
        return _Demands(1, (0,) * len(held), is_exact=True)
    smallest = min(amount for amount in held if amount)
    ratios = [Fraction(amount / smallest).limit_denominator(FINEST) for amount in held]
    parts = lcm(*(ratio.denominator for ratio in ratios))
    errors = [abs(float(r) * smallest - h) for r, h in zip(ratios, held, strict=True)]
    if parts <= FINEST and max(errors) <= NEARLY * max(held):
        unit = smallest / parts
        return _Demands(floor(cap / unit), tuple(round(h / unit) for h in held), is_exact=True)
    unit = cap / MOST_DEMAND
    return _Demands(MOST_DEMAND, tuple(ceil(h / unit) for h in held), is_exact=False)


def _limit_stages(
    model: CpModel, problem: Problem, tied: Constraints, starts: list[IntVar], device: int
) -> None:
    """What the cap implies for each stage alone.

    Where W of all stages are alike, those of a microbatch can be in the order of its I, whatever
    else is fixed. Then whoever is held at a stage is held at all earlier ones of the device.
    """
    stages, count = problem.stages_of[device], tied.microbatches
    amounts = {(problem.held[s], problem.weight_grad[s]) for s in stages}
    if len(amounts) > 1 or not problem.held[stages[0]]:
        return
    places = floor(problem.caps[device] * (1 + NEARLY) / problem.held[stages[0]])
    for index, stage in enumerate(stages):
        most = places // (index + 1)
        first = stage * count
        last = 2 * problem.stages * count + first
        for microbatch in range(count - most):
            ends = starts[last + microbatch] + int(tied.duration[last + microbatch])
            model.add(starts[first + microbatch + most] >= ends)
        if index:
            before = (2 * problem.stages + stages[index - 1]) * count
            for microbatch in range(count):
                ends = starts[last + microbatch] + int(tied.duration[last + microbatch])
                model.add(starts[before + microbatch] >= ends)
