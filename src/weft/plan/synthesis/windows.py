"""Windows: a part of a schedule is ordered anew by CP-SAT, while the rest keeps its order.

    device 0   F0 F1 F2 |  I0 W0 F3  | I1 W1        a stretch of time on all devices,
    device 1      F0 F1 |  I0 F2 W0  | I1 W1        or some neighbouring devices all along

Where the whole is too much for the solver, many small searches find better schedules, one after
another (large neighbourhood search).
"""

from __future__ import annotations

from itertools import groupby
from random import Random

from weft.plan.synthesis.constraints import Constraints, Starts
from weft.plan.synthesis.exact import Lanes, modelled
from weft.plan.synthesis.problem import Problem
from weft.plan.synthesis.solver import Search, solutions
from weft.plan.synthesis.squeeze import in_order

PART = 0.25  # of the time, or of the devices


def drawn(problem: Problem, tied: Constraints, starts: Starts, random: Random) -> set[int]:
    """The actions of a window, of either sort."""
    if random.random() < 0.5:
        width = PART * tied.length(starts)
        first = random.uniform(-width / 2, tied.length(starts) - width / 2)
        return {action for action, time in enumerate(starts) if first <= time < first + width}
    width = max(1, int(PART * problem.devices))
    begin = random.randint(0, problem.devices - width)
    return {n for n, device in enumerate(tied.device) if begin <= device < begin + width}


def reordered(
    problem: Problem, tied: Constraints, starts: Starts, window: set[int], search: Search
) -> tuple[Starts | None, float]:
    """A schedule that is shorter by a unit or more, if one is found, and the work that it took."""
    horizon = int(tied.length(starts)) - 1
    made = modelled(problem, tied, 0, horizon, _lanes(tied, starts, window))
    made.hint(starts)
    found, best = solutions(made.model, made.starts, search), None
    while True:
        try:
            best = next(found)
        except StopIteration as done:
            return None if best is None else [float(time) for time in best], done.value.work


def _lanes(tied: Constraints, starts: Starts, window: set[int]) -> Lanes:
    """What lies together in the window is one group; every other action is one by itself."""
    order: list[list[int]] = [[] for _ in tied.caps]
    for action in in_order(tied, starts):
        order[tied.device[action]].append(action)
    return [_groups(lane, window) for lane in order]


def _groups(lane: list[int], window: set[int]) -> list[list[int]]:
    groups: list[list[int]] = []
    for is_inside, run in groupby(lane, key=window.__contains__):
        actions = [*run]
        groups += [actions] if is_inside else [[action] for action in actions]
    return groups
