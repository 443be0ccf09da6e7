"""The best schedule so far, and the bound that is proved so far."""

from __future__ import annotations

from math import ceil

from weft.ir.program import Program
from weft.plan.synthesis.bounds import lower_bound
from weft.plan.synthesis.constraints import Constraints, Starts, constraints, rounded_down
from weft.plan.synthesis.lanes import program_of
from weft.plan.synthesis.problem import NEARLY, Problem
from weft.plan.synthesis.squeeze import MOST_ROUNDS, earlier, squeezed
from weft.simulate import simulate

SLIGHT = 1e-6  # of a unit
LONG = 20_000  # actions
FEW = 3  # that are squeezed to the end
FIRST_ROUNDS = 2


class Best:
    """What a search has found of one problem; schedules that are offered are squeezed first."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.tied = constraints(problem)
        self.bound = 0.0
        self.makespan = float("inf")
        self.method = ""
        self._starts: Starts = []
        self._length = float("inf")
        self._few: list[tuple[float, str, Starts]] = []
        self.raise_bound(lower_bound(problem))

    @property
    def rounded(self) -> Constraints:
        """The constraints in whole numbers; of times that have no unit, rounded down."""
        return self.tied if self.tied.is_exact else rounded_down(self.problem)

    @property
    def is_optimal(self) -> bool:
        return self.makespan <= self.bound * (1 + NEARLY)

    @property
    def is_long(self) -> bool:
        """Whether squeezing takes seconds."""
        return len(self.tied) > LONG

    @property
    def _rounds(self) -> int:
        """Of squeezing; for long programs few, until the best are known."""
        return FIRST_ROUNDS if self.is_long else MOST_ROUNDS

    def finish(self) -> bool:
        """Squeeze the best few for as long as that helps."""
        others = [
            self._take(squeezed(self.tied, starts), method)
            for _, method, starts in self._few
            if self.is_long
        ]
        return any(others)

    @property
    def program(self) -> Program:
        """The best order, by name."""
        problem = self.problem
        cap = "-".join(f"{cap:g}" for cap in sorted({min(problem.caps), max(problem.caps)}))
        name = f"synthesised-{problem.devices}x{problem.microbatches}-cap{cap}"
        return program_of(problem, self.tied, self._starts, name)

    def offer(self, starts: Starts, method: str, of: Constraints | None = None) -> bool:
        """Take a schedule if it is better; it may be timed by other constraints."""
        if of is not None and of is not self.tied:
            starts = earlier(self.tied, starts)
        found = squeezed(self.tied, starts, self._rounds)
        self._note(found, method)
        return self._take(found, method)

    def _note(self, found: Starts, method: str) -> None:
        """Keep the best few that differ in length."""
        length = self.tied.length(found)
        if all(length != other for other, _, _ in self._few):
            few = [*self._few, (length, method, found)]
            self._few = sorted(few, key=lambda item: item[0])[:FEW]

    def _take(self, found: Starts, method: str) -> bool:
        length = self.tied.length(found)
        if length >= self._length * (1 - NEARLY):
            return False
        self._starts, self._length, self.method = found, length, method
        self.makespan = simulate(self.program, self.problem.cost).makespan
        return True

    def starts_in(self, other: Constraints) -> Starts:
        """The same order, timed by other constraints."""
        return self._starts if other is self.tied else earlier(other, self._starts)

    def least_in(self, other: Constraints) -> float:
        """The bound in whole units."""
        seconds = self.bound + self.problem.overhead
        least = seconds / other.unit
        return float(ceil(least - SLIGHT)) if other.is_exact else float(int(least))

    def raise_bound(self, seconds: float) -> None:
        """To what is proved; every length is a whole number of units, if there is one."""
        tied, overhead = self.tied, self.problem.overhead
        if tied.is_exact:
            seconds = ceil((seconds + overhead) / tied.unit - SLIGHT) * tied.unit - overhead
        self.bound = max(self.bound, min(seconds, self.makespan))
