"""List schedules: every device runs the first of its ready actions that fits, as time goes on.

    I    first: the chain waits for it
    F    where there is room, of the deepest stage first
    W    when nothing else can run, or when as many are pending as the rule allows

No device admits an F that would take the room which the oldest microbatch with forwards to come
still needs, so that this one can always finish, and give back room for the next: devices never wait
for each other indefinitely.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from weft.plan.synthesis.constraints import Constraints, Starts
from weft.plan.synthesis.problem import Problem


@dataclass(frozen=True, slots=True)
class Rule:
    """What a list schedule goes by.

    caps      the most that each device may hold, at most the problem's own
    pending   how many W may wait on each device before one goes ahead of an F
    patience  for how long a device waits for an I that is on its way, rather than begin a W
    """

    caps: tuple[float, ...]
    pending: tuple[int, ...]
    patience: float = 0.0


def listed(problem: Problem, tied: Constraints, rule: Rule) -> Starts:
    """When every action starts in the list schedule of a rule."""
    machine = _Machine(problem, tied, rule)
    machine.run()
    return machine.starts


class _Machine:
    """Devices, what is ready on each, and the events that are to come."""

    def __init__(self, problem: Problem, tied: Constraints, rule: Rule) -> None:
        devices, microbatches = problem.devices, problem.microbatches
        self.tied, self.rule = tied, rule
        self.starts = [-1.0] * len(tied)
        self.size = problem.stages * microbatches
        self.free_at = [0.0] * devices
        self.room = [cap * (1 + 1e-9) for cap in rule.caps]
        self.ready: list[list[list[tuple[int, int, int]]]] = [[[], [], []] for _ in range(devices)]
        self.coming: list[list[float]] = [[] for _ in range(devices)]  # arrivals of I
        self.owed = [[least] * microbatches for least in problem.least]
        self.left = [[len(stages)] * microbatches for stages in problem.stages_of]
        self.oldest = [0] * devices
        self.events: list[tuple[float, int, int]] = []  # time, device, action that is ready or -1

    def run(self) -> None:
        """Go from event to event until there is none."""
        first = self.tied.reads.index(())
        heappush(self.events, (0.0, self.tied.device[first], first))
        while self.events:
            time, touched = self.events[0][0], set()
            while self.events and self.events[0][0] <= time:
                _, device, action = heappop(self.events)
                touched.add(device)
                if action >= 0:
                    self._arrived(device, action)
            for device in sorted(touched):
                if self.free_at[device] <= time:
                    self._dispatch(device, time)

    def _arrived(self, device: int, action: int) -> None:
        kind, rest = divmod(action, self.size)
        stage, microbatch = divmod(rest, self.tied.microbatches)
        key = (-stage, microbatch) if kind == 0 else (microbatch, -stage)
        heappush(self.ready[device][kind], (*key, action))
        if kind == 1:
            heappop(self.coming[device])

    def _dispatch(self, device: int, time: float) -> None:
        action = self._chosen(device, time)
        if action is None:
            return
        tied = self.tied
        end = time + tied.duration[action]
        self.starts[action] = time
        self.free_at[device] = end
        self._account(device, action)
        heappush(self.events, (end, device, -1))
        for reader, delay in tied.readers[action]:
            self._announce(reader, max(time, end + delay))
        if action < tied.microbatches - 1:  # the next microbatch enters after this one
            heappush(self.events, (time, device, action + 1))

    def _announce(self, action: int, time: float) -> None:
        device = self.tied.device[action]
        heappush(self.events, (time, device, action))
        if action // self.size == 1:
            heappush(self.coming[device], time)

    def _chosen(self, device: int, time: float) -> int | None:
        forwards, gradients, weights = self.ready[device]
        if gradients:
            return heappop(gradients)[-1]
        if len(weights) >= self.rule.pending[device]:
            return heappop(weights)[-1]
        if (found := self._admitted(device, forwards)) is not None:
            return found
        if weights and not self._is_near(device, time):
            return heappop(weights)[-1]
        return None

    def _is_near(self, device: int, time: float) -> bool:
        """Whether an I arrives soon, which a W would keep waiting."""
        coming = self.coming[device]
        return bool(coming) and coming[0] < time + self.rule.patience

    def _admitted(self, device: int, forwards: list[tuple[int, int, int]]) -> int | None:
        """The first F that leaves room enough for the oldest microbatch that still needs some."""
        if not forwards:
            return None
        oldest, room, microbatches = self.oldest[device], self.room[device], self.tied.microbatches
        for item in sorted(forwards) if len(forwards) > 1 else forwards:
            action = item[-1]
            microbatch = action % microbatches
            reserved = 0.0 if microbatch == oldest else self.owed[device][oldest]
            if self.tied.holds[action] + reserved <= room:
                forwards.remove(item)
                heapify(forwards)
                return action
        return None

    def _account(self, device: int, action: int) -> None:
        """Room that is taken by an F, or given back by a W when it ends: nothing starts before."""
        amount = self.tied.holds[action]
        self.room[device] -= amount
        microbatch = action % self.tied.microbatches
        if action < self.size:
            self.owed[device][microbatch] -= amount
            left = self.left[device]
            left[microbatch] -= 1
            while self.oldest[device] < len(left) - 1 and not left[self.oldest[device]]:
                self.oldest[device] += 1
