"""Lower bounds: what no order can be shorter than, from each device's own point of view.

head         the first microbatch has to reach the device
turn         its gradient has to come back, while the cap allows few other forwards
work         everything that the device computes
tail         after the last F, its gradient has to come back and go on up the chain; only I and W of
             what the device then holds fill that time
turn-around  a microbatch is held for a whole turn, and only as many are as the cap allows
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

from weft.plan.synthesis.problem import NEARLY, Problem


def lower_bound(problem: Problem) -> float:
    """Seconds that every order takes at least."""
    return max(by_device(problem))


def by_device(problem: Problem) -> list[float]:
    """The same, as far as each device can know."""
    paths = Paths.of(problem)
    return [
        max(_busy(problem, paths, device), _turn_around(problem, paths, device)) - problem.overhead
        for device in range(problem.devices)
    ]


@dataclass(frozen=True, slots=True)
class Paths:
    """For each stage, seconds along the chain; an action lasts until its device is free again.

    forward, input_grad, weight_grad   of its actions
    head    before its first F
    turn    from the end of its F to the start of its I
    tail    from the end of its I to the end of all that waits for it
    """

    forward: list[float]
    input_grad: list[float]
    weight_grad: list[float]
    head: list[float]
    turn: list[float]
    tail: list[float]

    @classmethod
    def of(cls, problem: Problem) -> Paths:
        overhead, stages = problem.overhead, problem.stages
        forward = [time + overhead for time in problem.forward]
        input_grad = [time + overhead for time in problem.input_grad]
        weight_grad = [time + overhead for time in problem.weight_grad]
        there = [delay - overhead for delay in problem.delays.there]
        back = [delay - overhead for delay in problem.delays.back]
        head, tail, turn = [0.0], [weight_grad[0]], [0.0]
        for stage in range(1, stages):
            head.append(head[-1] + forward[stage - 1] + there[stage - 1])
            rest = back[stage - 1] + input_grad[stage - 1] + tail[-1]
            tail.append(max(weight_grad[stage], rest))
        for stage in range(stages - 1, 0, -1):
            away = there[stage - 1] + forward[stage] + input_grad[stage] + back[stage - 1]
            turn.append(turn[-1] + away)
        return cls(forward, input_grad, weight_grad, head, turn[::-1], tail)

    def whole(self, stage: int) -> float:
        """From the start of F to the end of W of one microbatch."""
        own = self.forward[stage] + self.input_grad[stage] + self.weight_grad[stage]
        return own + self.turn[stage]


def _busy(problem: Problem, paths: Paths, device: int) -> float:
    """All work of a device, and what it must wait before and after it."""
    stages, microbatches = problem.stages_of[device], problem.microbatches
    first = stages[0]
    work = microbatches * sum(
        paths.forward[s] + paths.input_grad[s] + paths.weight_grad[s] for s in stages
    )
    idle = _idle_before(problem, paths, device) + _idle_after(problem, paths, device)
    return paths.head[first] + work + idle


def _idle_before(problem: Problem, paths: Paths, device: int) -> float:
    """Until its first I, a device has only forwards to run, and room for few of them."""
    first, last = problem.stages_of[device][0], problem.stages_of[device][-1]
    first_gradient = paths.head[last] + paths.forward[last] + paths.turn[last]
    return max(0.0, first_gradient - paths.head[first] - _most(problem, device, paths.forward))


def _idle_after(problem: Problem, paths: Paths, device: int) -> float:
    """After its last I, a device has only W to run; after its last F, only what it holds then.

    Where not all microbatches fit at once, the last F begins after a W, so that none of this is
    counted by `_idle_before`.
    """
    first, last = problem.stages_of[device][0], problem.stages_of[device][-1]
    idle = max(0.0, paths.tail[first] - _most(problem, device, paths.weight_grad))
    if problem.fits(device, problem.microbatches * problem.least[device]):
        return idle
    both = [sum(times) for times in zip(paths.input_grad, paths.weight_grad, strict=True)]
    rest = paths.turn[last] + paths.input_grad[last] + paths.tail[last]
    return max(idle, rest - _most(problem, device, both))


def _most(problem: Problem, device: int, seconds: list[float]) -> float:
    """The most seconds of such actions whose microbatches are held at once."""
    room, most = problem.caps[device] * (1 + NEARLY), 0.0
    stages = sorted(problem.stages_of[device], key=lambda s: -_worth(seconds[s], problem.held[s]))
    for stage in stages:
        held = problem.held[stage]
        fitting = room / held if held else float("inf")
        count = min(float(problem.microbatches), fitting)
        most += count * seconds[stage]
        room -= count * held
    return most


def _worth(seconds: float, held: float) -> float:
    return seconds / held if held else float("inf")


def _turn_around(problem: Problem, paths: Paths, device: int) -> float:
    """What holding every microbatch for a whole turn takes, with as little room."""
    stages = problem.stages_of[device]
    amounts = {problem.held[stage] for stage in stages}
    if len(amounts) > 1 or not any(amounts):
        held = sum(problem.held[stage] * paths.whole(stage) for stage in stages)
        turn = problem.microbatches * held / problem.caps[device] if held else 0.0
        return paths.head[stages[0]] + turn
    places = floor(problem.caps[device] * (1 + NEARLY) / amounts.pop())
    places = min(places, problem.microbatches * len(stages))
    by_area = _by_area(problem, paths, stages, places)
    if len(stages) > 1:
        return by_area
    return max(by_area, _by_rounds(problem, paths, stages[0], places))


def _by_area(problem: Problem, paths: Paths, stages: tuple[int, ...], places: int) -> float:
    """Places are taken and given back one after another; between that all may be in use."""
    taking = min(paths.forward[stage] for stage in stages)
    giving = min(paths.weight_grad[stage] for stage in stages)
    held = problem.microbatches * sum(paths.whole(stage) for stage in stages)
    unused = (taking + giving) * places * (places - 1) / 2
    return paths.head[stages[0]] + (held + unused) / places


def _by_rounds(problem: Problem, paths: Paths, stage: int, places: int) -> float:
    """Microbatches that share a place follow each other.

    With N = q C + r, either r places have q + 1 of them, the last of which begins after r - 1
    forwards, or some place has q + 2.
    """
    rounds, rest = divmod(problem.microbatches - 1, places)
    whole = paths.whole(stage)
    time = min(rest * paths.forward[stage] + (rounds + 1) * whole, (rounds + 2) * whole)
    beyond = max(0.0, paths.tail[stage] - paths.weight_grad[stage])
    return paths.head[stage] + time + beyond
