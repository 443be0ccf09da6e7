"""Synthesis: the best order that can be found for a problem, and how good it is known to be.

    seeds      list schedules and the registry's own, squeezed
    periods    for long runs: a few microbatches that repeat, laid action by action, unrolled and
               squeezed
    alone      a better bound, from one device by itself
    exact      a start for every action, by CP-SAT: the proof, where the problem is small enough
    windows    parts of the best schedule ordered anew, where the whole was too much

Each begins with the best that was found before it. The same problem gives the same program, as
efforts count work; only `seconds` looks at a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from time import monotonic
from typing import TypeAlias

from weft.errors import InputError
from weft.ir.program import Program
from weft.plan.synthesis.alone import bound_of_one
from weft.plan.synthesis.best import Best
from weft.plan.synthesis.exact import exact, is_exact_in_memory
from weft.plan.synthesis.greedy import listed
from weft.plan.synthesis.modulo import laid_periods
from weft.plan.synthesis.off import Spread, spread
from weft.plan.synthesis.problem import NEARLY, Problem
from weft.plan.synthesis.seeds import changed_rules, seeds
from weft.plan.synthesis.solver import INSTALL, Search, is_installed
from weft.plan.synthesis.windows import drawn, reordered
from weft.schedules.kit.shape import count
from weft.verify import check

THOUSAND = 1_000
MOVED = 40  # times that a trial moves every action, about
MOST_TRIALS = 24  # of local search
PLACEMENTS = 50  # for each action, while periods are laid
MOST_EXACT = 8_000  # actions of the exact model
ALONE = 0.1  # of the effort, for the bound of one device
FROM_BELOW = 0.5  # of the effort, for the exact model; the rest is for windows
ONE_WINDOW = 0.5  # of deterministic time at most
ACTIONS_BUILT = 10_000  # for a model, in about a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is tried.

    exact    deterministic time of CP-SAT for proofs, about seconds of an idle core
    moves    actions that periods and local search may place or move, in thousands
    seconds  by the clock, for all of it; what is found then depends on the machine
    """

    exact: float = 30.0
    moves: int = 3_000
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("exact", "moves"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name}: {getattr(self, name)!r} is not a number from 0 up")
        if self.seconds is not None and not self.seconds > 0:
            raise InputError(f"seconds: {self.seconds!r} is not a number above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthesis:
    """A program, its makespan, and a bound that no program of the problem is below.

    method   how it was found
    missing  what would have been tried, had it been installed
    """

    problem: Problem = field(repr=False)
    program: Program
    makespan: float
    bound: float
    method: str
    missing: str = ""

    @property
    def is_optimal(self) -> bool:
        """Whether it is proved that none ends sooner."""
        return self.makespan <= self.bound * (1 + NEARLY)

    @property
    def gap(self) -> float:
        """How far above its bound it is, as a fraction of that."""
        return max(0.0, self.makespan / self.bound - 1)

    def with_times_off(self, fraction: float = 0.05) -> Spread:
        """Its makespans if every time of every stage is off by up to that fraction."""
        return spread(self.program, self.problem.cost, fraction)


Watch: TypeAlias = Callable[[Synthesis], None]


def synthesize(
    problem: Problem, effort: Effort | None = None, watch: Watch = lambda found: None
) -> Synthesis:
    """The best program that the effort finds; `watch` gets each better one as it is found."""
    for found in improvements(problem, effort or Effort()):
        watch(found)
    check(found.program)
    return found


def improvements(problem: Problem, effort: Effort) -> Iterator[Synthesis]:
    """Ever better programs, or better bounds of the same one."""
    deadline = None if effort.seconds is None else monotonic() + effort.seconds
    best = Best(problem)
    for phase in (_from_seeds, _from_periods, _by_local_search, _from_one_device, _by_exact_model):
        for _ in phase(best, effort, deadline):
            yield _synthesis(best)
            if best.is_optimal:
                return


def _synthesis(best: Best) -> Synthesis:
    return Synthesis(
        problem=best.problem,
        program=best.program,
        makespan=best.makespan,
        bound=best.bound,
        method=best.method,
        missing="" if best.is_optimal or is_installed() else _MISSING,
    )


_MISSING = f"OR-tools is not installed, so that only heuristics were tried: {INSTALL}"


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and monotonic() >= deadline


def _search(effort: Effort, deadline: float | None, share: float) -> Search:
    """A search with a share of the effort, or of the seconds that are left."""
    seconds = None if deadline is None else max(0.01, share * (deadline - monotonic()))
    return Search(share * effort.exact, seconds)


def _from_seeds(best: Best, effort: Effort, deadline: float | None) -> Iterator[None]:
    for seed in seeds(best.problem, best.tied):
        if best.offer(seed.starts, f"{seed.method}, squeezed"):
            yield
        if _is_over(deadline):
            return


def _from_periods(best: Best, effort: Effort, deadline: float | None) -> Iterator[None]:
    placements = min(THOUSAND * effort.moves // 4, PLACEMENTS * len(best.tied))
    for period in laid_periods(best.problem, best.tied, placements):
        words = f"period of {count(period.together, 'microbatches')}, squeezed"
        if best.offer(period.unrolled(best.problem.microbatches), words):
            yield
        if _is_over(deadline):
            return


def _by_local_search(best: Best, effort: Effort, deadline: float | None) -> Iterator[None]:
    trials = min(MOST_TRIALS, THOUSAND * effort.moves // (MOVED * len(best.tied)))
    for rule in changed_rules(best.problem, best.tied, trials):
        if _is_over(deadline):
            return
        if best.offer(listed(best.problem, best.tied, rule), "list schedule, squeezed"):
            yield
    if best.finish():
        yield


def _from_one_device(best: Best, effort: Effort, deadline: float | None) -> Iterator[None]:
    if effort.exact and is_installed() and not _is_over(deadline):
        share = ALONE if _is_small(best) else 1.0
        search = replace(_search(effort, deadline, share), is_from_below=True)
        best.raise_bound(bound_of_one(best.problem, best.makespan, search))
        yield


def _is_small(best: Best) -> bool:
    return len(best.tied) <= MOST_EXACT


def _by_exact_model(best: Best, effort: Effort, deadline: float | None) -> Iterator[None]:
    if not (_is_small(best) and effort.exact and is_installed()) or _is_over(deadline):
        return
    is_thorough = best.problem.stages > best.problem.devices
    search = _search(effort, deadline, FROM_BELOW)
    yield from _searched(best, replace(search, is_from_below=True, is_thorough=is_thorough))
    yield from _by_windows(best, (1 - FROM_BELOW) * effort.exact, deadline)


def _by_windows(best: Best, work: float, deadline: float | None) -> Iterator[None]:
    """Windows at random, until the work is used up; a trial takes some even if it ends at once."""
    problem, tied, random = best.problem, best.rounded, Random(0)
    while work > 0 and not _is_over(deadline):
        starts = best.starts_in(tied)
        search = Search(ONE_WINDOW, None if deadline is None else max(0.01, deadline - monotonic()))
        window = drawn(problem, tied, starts, random)
        found, used = reordered(problem, tied, starts, window, search)
        work -= max(used, len(tied) / ACTIONS_BUILT)
        if found is not None and best.offer(found, "CP-SAT", of=tied):
            yield


def _searched(best: Best, search: Search) -> Iterator[None]:
    """What one search of the exact model finds and proves."""
    problem, tied = best.problem, best.rounded
    found = exact(problem, tied, best.starts_in(tied), best.least_in(tied), search)
    while True:
        try:
            starts = next(found)
        except StopIteration as done:
            verdict = done.value
            break
        if best.offer([float(start) for start in starts], "CP-SAT", of=tied):
            yield
    if is_exact_in_memory(problem):
        best.raise_bound(verdict.bound * tied.unit - problem.overhead)
        yield
