"""CP-SAT of OR-tools, if it is installed: one worker, a fixed seed, limits that count its work.

It runs on a thread, so that Ctrl-C reaches whoever waits for it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, CpSolver, IntVar

SEED = 1
POLL = 0.1  # seconds
INSTALL = "pip install 'weft[plan]'"


class Verdict(NamedTuple):
    """What a search has proved: a bound on its objective, and whether that is reached.

    work  the deterministic time that it took
    """

    bound: float
    is_proven: bool
    work: float


@dataclass(frozen=True, slots=True)
class Search:
    """How long and how CP-SAT searches; `work` is its deterministic time, about seconds.

    is_from_below  whether it raises the bound step by step, instead of looking for better ones
    is_thorough    whether it thinks longer about what must come before what on a device
    """

    work: float
    seconds: float | None = None
    is_from_below: bool = False
    is_thorough: bool = False


def is_installed() -> bool:
    """Whether OR-tools can be imported."""
    try:
        import ortools.sat.python.cp_model  # noqa: F401  only whether it is there
    except ImportError:
        return False
    return True


def solutions(
    model: CpModel, variables: Sequence[IntVar], search: Search
) -> Generator[list[int], None, Verdict]:
    """Each better solution as it is found: the values of these variables; then the verdict."""
    from ortools.sat.python import cp_model

    found: SimpleQueue[list[int] | None] = SimpleQueue()

    class Noted(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            found.put([self.value(variable) for variable in variables])

    solver, noted = _solver(search), Noted()
    statuses: list[int] = []

    def run() -> None:
        try:
            statuses.append(int(solver.solve(model, noted)))
        finally:
            found.put(None)

    thread = Thread(target=run, daemon=True)
    thread.start()
    try:
        while (values := _next(found)) is not None:
            yield values
    finally:
        while thread.is_alive():  # a search that has not begun cannot be stopped yet
            solver.stop_search()
            thread.join(POLL)
    return Verdict(
        bound=solver.best_objective_bound,
        is_proven=statuses == [int(cp_model.OPTIMAL)],
        work=solver.response_proto.deterministic_time,
    )


def _next(found: SimpleQueue[list[int] | None]) -> list[int] | None:
    """What comes next; a wait without end could not be interrupted."""
    while True:
        try:
            return found.get(timeout=POLL)
        except Empty:
            continue


def _solver(search: Search) -> CpSolver:
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = 1
    parameters.random_seed = SEED
    parameters.max_deterministic_time = search.work
    if search.seconds is not None:
        parameters.max_time_in_seconds = search.seconds
    parameters.cp_model_presolve = False  # which would cost more than it brings
    parameters.linearization_level = 0  # and so would linear programs
    parameters.use_objective_lb_search = search.is_from_below
    parameters.use_strong_propagation_in_disjunctive = search.is_thorough
    parameters.catch_sigint_signal = False
    return solver
