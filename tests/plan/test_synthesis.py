"""Synthesis: proven optima, programs that hold what they claim, and what is refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from random import Random

import pytest

from tests.plan.problems import REAL, placed, straight, uneven, vee
from weft.cost import Cost, Link
from weft.errors import InputError
from weft.ir.placement import Placement
from weft.plan.synthesis import Delays, Effort, Problem, Synthesis, one_microbatch, synthesize
from weft.plan.synthesis.alone import bound_of_one
from weft.plan.synthesis.bounds import lower_bound
from weft.plan.synthesis.constraints import constraints
from weft.plan.synthesis.exact import exact
from weft.plan.synthesis.lanes import program_of, starts_of
from weft.plan.synthesis.seeds import seeds
from weft.plan.synthesis.solver import Search
from weft.plan.synthesis.squeeze import squeezed
from weft.plan.synthesis.windows import drawn, reordered
from weft.request import Costs
from weft.simulate import simulate
from weft.verify import check

QUICK = Effort(moves=200)
BELOW = Search(work=1.0, is_from_below=True)

GOLDEN = [
    *((4, 8, cap, best) for cap, best in ((2, 41), (3, 31), (4, 27), (6, 27))),
    *((6, 12, cap, best) for cap, best in ((4, 49), (5, 44), (6, 41), (8, 41))),
    *((8, 16, cap, best) for cap, best in ((3, 102), (4, 79), (5, 68), (6, 61), (7, 58), (8, 55))),
    (8, 32, 8, 103),
]


def held_to_its_claims(found: Synthesis) -> None:
    """The program is valid, takes as long as it says, and holds no more than it may."""
    check(found.program)
    timeline = simulate(found.program, found.problem.cost)
    assert timeline.makespan == found.makespan
    share = found.problem.placement.share
    for device, peak in enumerate(timeline.peak_activations):
        held = found.problem.held[0]  # of all stages alike
        assert peak / share * held <= found.problem.caps[device] + 1e-9


@pytest.mark.parametrize(("devices", "microbatches", "cap", "best"), GOLDEN)
def test_known_optima_are_found_and_proved(
    devices: int, microbatches: int, cap: int, best: int
) -> None:
    found = synthesize(straight(devices, microbatches, cap), QUICK)
    assert (found.makespan, found.is_optimal) == (best, True)
    held_to_its_claims(found)


@pytest.mark.parametrize(("cap", "best"), [(2, 433), (3, 329), (4, 283), (6, 265)])
def test_known_optima_of_real_times(cap: int, best: int) -> None:
    found = synthesize(straight(4, 8, cap, REAL), QUICK)
    assert (found.makespan, found.is_optimal) == (best, True)


@pytest.mark.parametrize(
    ("problem", "best"), [(vee(4, 8, 4), 59), (vee(8, 16, 10, (100, 100, 75, 4)), 10_893)]
)
def test_known_optima_of_a_v(problem: Problem, best: int) -> None:
    found = synthesize(problem, QUICK)
    assert (found.makespan, found.is_optimal) == (best, True)
    held_to_its_claims(found)


@pytest.mark.parametrize(("cap", "best"), [(8, 119), (10, 113), (14, 105), (16, 103)])
def test_formulas_reach_the_optima_of_a_v(cap: int, best: int) -> None:
    """They count what is idle before the first gradient and after the last forward."""
    assert lower_bound(vee(8, 16, cap)) == pytest.approx(best)


def test_one_device_alone_knows_more_than_its_formulas() -> None:
    problem = straight(32, 128, 24, (100, 100, 75, 4))
    assert lower_bound(problem) == pytest.approx(41_771)
    assert bound_of_one(problem, 45_000, BELOW) == 42_263


def test_windows_make_a_schedule_shorter_and_keep_the_caps() -> None:
    problem = vee(3, 6, 3, REAL)
    tied = constraints(problem)
    starts = squeezed(tied, next(seeds(problem, tied)).starts)
    before, random = tied.length(starts), Random(0)
    for _ in range(8):
        window = drawn(problem, tied, starts, random)
        found, work = reordered(problem, tied, starts, window, Search(work=0.1))
        assert 0 < work < 0.2
        starts = found or starts
    assert tied.length(starts) < before
    program = program_of(problem, tied, starts, "reordered")
    check(program)
    assert simulate(program, problem.cost).makespan <= tied.length(starts)
    assert starts_of(problem, tied, program) is not None  # which is None above the caps


@pytest.mark.parametrize(("stage", "factor", "best"), [(4, 1.2, 620), (0, 0.7, 555)])
def test_known_optima_of_uneven_stages(stage: int, factor: float, best: int) -> None:
    found = synthesize(uneven(stage, factor), QUICK)
    assert (found.makespan, found.is_optimal) == (best, True)
    held_to_its_claims(found)


def small(random: Random) -> Problem:
    """Two or three devices with one or two stages, and times that differ."""
    devices = random.randint(2, 3)
    place = random.choice((Placement.straight(devices), Placement.wave(devices)))
    stages = place.stages

    def times() -> tuple[float, ...]:
        return tuple(float(random.randint(1, 5)) for _ in range(stages))

    return Problem(
        placement=place,
        microbatches=random.randint(1, 4),
        forward=times(),
        input_grad=times(),
        weight_grad=times(),
        held=(1,) * stages,
        caps=tuple(random.randint(stages // devices, 5) for _ in range(devices)),
        latency=random.randint(0, 2),
    )


@pytest.mark.parametrize("seed", range(8))
def test_no_bound_is_above_a_proven_optimum(seed: int) -> None:
    """The exact model is given no bound here, so that it cannot be misled by a wrong one."""
    problem = small(Random(seed))
    tied = constraints(problem)
    first = next(seeds(problem, tied)).starts
    search = exact(problem, tied, first, 0, Search(work=20))
    while True:
        try:
            next(search)
        except StopIteration as done:
            verdict = done.value
            break
    assert verdict.is_proven
    found = synthesize(problem, QUICK)
    assert lower_bound(problem) <= verdict.bound * tied.unit + 1e-9
    alone = bound_of_one(problem, 2 * verdict.bound * tied.unit, BELOW)
    assert alone <= verdict.bound * tied.unit + 1e-9
    assert found.makespan == pytest.approx(verdict.bound * tied.unit)
    assert found.is_optimal
    held_to_its_claims(found)


def test_squeezing_makes_nothing_longer_and_keeps_the_caps() -> None:
    for problem in (
        straight(6, 14, 4, REAL),
        vee(4, 9, 5, REAL),
        straight(5, 11, 3, (1, 2, 1, 0.3)),
    ):
        tied = constraints(problem)
        for seed in seeds(problem, tied):
            assert tied.length(squeezed(tied, seed.starts)) <= tied.length(seed.starts) + 1e-6
        held_to_its_claims(synthesize(problem, Effort(exact=0, moves=50)))


def test_stages_in_a_loop() -> None:
    found = synthesize(placed(Placement.looped(2, 2), 6, 3, REAL), QUICK)
    held_to_its_claims(found)
    assert found.gap < 0.1


def test_a_long_run_goes_by_periods() -> None:
    """List schedules alone are 16 % above the bound."""
    found = synthesize(straight(12, 60, 9, (100, 100, 75, 4)), Effort(exact=0, moves=400))
    assert found.method.startswith("period")
    assert 0 < found.gap < 0.12
    held_to_its_claims(found)


def test_the_same_problem_gives_the_same_program() -> None:
    one, other = (synthesize(straight(5, 10, 3, (1.0, 1.13, 0.71, 0.05)), QUICK) for _ in range(2))
    assert one.program == other.program
    assert (one.makespan, one.bound) == (other.makespan, other.bound)
    assert one.with_times_off() == other.with_times_off()


def test_every_better_program_is_shown_as_it_is_found() -> None:
    seen: list[Synthesis] = []
    found = synthesize(straight(8, 16, 4), QUICK, seen.append)
    spans = [one.makespan for one in seen]
    assert spans == sorted(spans, reverse=True)
    assert seen[-1] == found


def test_without_a_solver_heuristics_work_and_say_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python.cp_model", None)
    found = synthesize(straight(8, 16, 4), QUICK)
    held_to_its_claims(found)
    assert not found.is_optimal
    assert found.bound < 79 <= found.makespan <= 85
    assert "pip install 'weft[plan]'" in found.missing
    assert synthesize(straight(4, 8, 4), QUICK).missing == ""  # the bound is reached without it


def test_times_that_are_off_change_little() -> None:
    found = synthesize(straight(4, 8, 3), QUICK)
    exactly, off = found.with_times_off(0.0), found.with_times_off(0.05)
    assert exactly.mean == exactly.longest == found.makespan
    assert found.makespan < off.mean <= off.longest < 1.05 * found.makespan + 1e-9


@pytest.mark.parametrize("overhead", [0.0, 0.017])
def test_stages_that_take_no_time_make_no_deadlock(overhead: float) -> None:
    """Rounding may not change their places with what begins at the same moment."""
    for seed in range(12):
        random = Random(seed)
        times = [
            tuple(random.choice((0.0, 1.0)) * random.uniform(1, 5) for _ in range(4))
            for _ in range(3)
        ]
        problem = replace(vee(2, 5, 3), forward=times[0], input_grad=times[1], weight_grad=times[2])
        found = synthesize(replace(problem, overhead=overhead), Effort(exact=0, moves=20))
        held_to_its_claims(found)


# costs


def measured() -> Cost:
    """Times that no unit divides, links that differ, and a host that takes time."""
    program = one_microbatch(Placement.straight(3))
    cost = Costs().of(program)
    times = replace(
        cost.times,
        forward=(0.0101, 0.0123, 0.0117),
        input_grad=(0.0114, 0.0131, 0.0129),
        weight_grad=(0.0083, 0.0089, 0.0091),
    )
    between = {(0, 1): Link(0.0007), (1, 0): Link(0.0003), (1, 2): Link(0.0011)}
    memory = replace(cost.memory, saved=(5e6, 7e6, 6e6))
    network = replace(cost.network, between=between)
    return replace(cost, times=times, memory=memory, network=network, overhead=0.0002)


def test_a_measured_cost_is_timed_as_the_simulator_times_it() -> None:
    cost = measured()
    problem = Problem.from_cost(cost, Placement.straight(3), 7, (14e6, 14e6, 12e6))
    assert problem.delays == Delays((0.0007, 0.0011), (0.0003, 0.0))
    found = synthesize(problem, QUICK)
    assert simulate(found.program, cost).makespan == found.makespan
    assert found.bound <= found.makespan <= 1.02 * found.bound
    timeline = simulate(found.program, cost)
    assert timeline.peak_activations <= [2, 2, 2]


def test_unequal_stages_of_one_device_share_its_room() -> None:
    problem = replace(vee(2, 5, 5, REAL), held=(1, 1.5, 0.7, 0.4))
    found = synthesize(problem, QUICK)
    check(found.program)
    loads = {device: max(load for load in _loads(found, device)) for device in range(2)}
    assert max(loads.values()) <= 5 + 1e-9


def _loads(found: Synthesis, device: int) -> list[float]:
    level, loads = 0.0, [0.0]
    for action in found.program.lane(device):
        held = found.problem.held[action.stage]
        level += {"F": held, "W": -held}.get(action.kind.name, 0.0)
        loads.append(level)
    return loads


# what is refused


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"caps": (3, 3, 0.5, 3)}, "a cap of 0.5 on device 2 is below the smallest possible, 1"),
        ({"caps": (3, 3)}, "caps has 2 numbers, and there are 4 devices"),
        ({"forward": (1, 1)}, "forward has 2 numbers, and there are 4 stages"),
        ({"held": (1, 1, float("nan"), 1)}, "held: nan is not a finite number"),
        ({"weight_grad": (1, 1, -1, 1)}, "weight_grad: -1 is not a finite number"),
        ({"latency": float("inf")}, "latency: inf is not a finite number"),
        ({"latency": Delays((1,), (1, 1, 1))}, "latency has 1 numbers, and there are 3 edges"),
        ({"microbatches": 0}, "microbatches must be at least 1, not 0"),
        ({"microbatches": 1_000_000}, "12,000,000 actions; synthesis takes 1,000,000"),
        ({"placement": Placement(((0, 1, 2, 3), (3, 2, 1, 0)))}, "orders one pipe"),
        (dict.fromkeys(("forward", "input_grad", "weight_grad"), (0,) * 4), "takes any time"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words.replace("[", r"\[")):
        replace(straight(4, 8, 3), **changes)  # type: ignore[arg-type]


def test_a_v_needs_room_for_both_its_stages() -> None:
    with pytest.raises(InputError, match="smallest possible, 2"):
        vee(4, 8, 1)


@pytest.mark.parametrize("effort", [{"exact": -1.0}, {"moves": float("nan")}, {"seconds": 0.0}])
def test_efforts_are_checked(effort: dict[str, float]) -> None:
    with pytest.raises(InputError, match="is not a number"):
        Effort(**effort)  # type: ignore[arg-type]


def test_microbatches_of_several_sizes_are_refused() -> None:
    cost = replace(measured(), sizes=(1.0, 0.5))
    with pytest.raises(InputError, match="microbatches of one size"):
        Problem.from_cost(cost, Placement.straight(3), 2, (14e6, 14e6, 12e6))
