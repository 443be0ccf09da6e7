"""How good synthesised schedules are, and how long they take to find.

    .venv/bin/python benchmarks/plan/synthesis.py [golden|v|real|scale ...]

Every case is one run with the usual effort, on one core; a case that has a known optimum says
whether that was found. Seconds are CPU seconds of the process, as the machine is shared.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from tests.plan.problems import REAL, UNIT, straight, uneven, vee
from weft.plan.synthesis import Effort, Problem, synthesize
from weft.simulate import simulate

LONG = (100.0, 100.0, 75.0, 4.0)


class Case(NamedTuple):
    """A problem by its name, and its optimum where that is known."""

    name: str
    problem: Problem
    best: float | None = None


def golden() -> Iterator[Case]:
    table = {
        (4, 8): {2: 41, 3: 31, 4: 27, 6: 27},
        (6, 12): {4: 49, 5: 44, 6: 41, 8: 41},
        (8, 16): {3: 102, 4: 79, 5: 68, 6: 61, 7: 58, 8: 55},
        (8, 32): {4: 151, 5: 127, 6: 109, 7: 106, 8: 103},
    }
    for (devices, microbatches), bests in table.items():
        for cap, best in bests.items():
            problem = straight(devices, microbatches, cap, UNIT)
            yield Case(f"{devices} x {microbatches} cap {cap}", problem, best)
    for cap, best in {2: 433, 3: 329, 4: 283, 6: 265}.items():
        yield Case(f"4 x 8 cap {cap}, 10/11/8, c 1", straight(4, 8, cap, REAL), best)
    yield Case("8 x 16 cap 8, stage 4 takes 1.2 times", uneven(4, 1.2), 620)
    yield Case("8 x 16 cap 8, stage 0 takes 0.7 times", uneven(0, 0.7), 555)


def v() -> Iterator[Case]:
    for cap, best in {3: 86, 4: 59, 5: 56}.items():
        yield Case(f"V 4 x 8 cap {cap}", vee(4, 8, cap), best)
    for cap, best in {4: 648, 5: 587, 6: 547, 8: 506}.items():
        yield Case(f"V 4 x 8 cap {cap}, 10/11/8, c 1", vee(4, 8, cap, REAL), best)
    for cap, best in {6: 133, 8: 119, 10: 113, 14: 105, 16: 103}.items():
        yield Case(f"V 8 x 16 cap {cap}", vee(8, 16, cap), best)
    for cap in (6, 8, 10, 14, 16):
        yield Case(f"V 8 x 16 cap {cap}, 100/100/75, c 4", vee(8, 16, cap, LONG))


def real() -> Iterator[Case]:
    for cap in (4, 6, 8, 12):
        yield Case(f"8 x 16 cap {cap}, 100/100/75, c 4", straight(8, 16, cap, LONG))
    odd = (100.13, 98.71, 74.91, 4.03)
    yield Case("8 x 16 cap 6, times without a unit", straight(8, 16, 6, odd))
    for cap in (4, 6):
        yield Case(f"8 x 32 cap {cap}, 100/100/75, c 4", straight(8, 32, cap, LONG))


def scale() -> Iterator[Case]:
    yield Case("32 x 128 cap 24, 100/100/75, c 4", straight(32, 128, 24, LONG))
    yield Case("64 x 512 cap 48, 100/100/75, c 4", straight(64, 512, 48, LONG))


def measured(case: Case) -> str:
    """A row of the table."""
    begin = time.process_time()
    found = synthesize(case.problem, Effort())
    seconds = time.process_time() - begin
    assert simulate(found.program, case.problem.cost).makespan == found.makespan
    best = "" if case.best is None else f"{case.best:g}"
    proved = "proved" if found.is_optimal else f"{100 * found.gap:.1f} %"
    cells = case.name, f"{found.makespan:g}", best, proved, f"{seconds:.1f}", found.method
    return f"| {' | '.join(cells)} |"


def main() -> None:
    groups = {"golden": golden, "v": v, "real": real, "scale": scale}
    print("| case | makespan | known best | above bound | CPU s | found by |")
    print("|---|---|---|---|---|---|")
    for name in sys.argv[1:] or groups:
        for case in groups[name]():
            print(measured(case), flush=True)


if __name__ == "__main__":
    main()
