"""The least channel depth, against a machine that moves every message by hand."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verify import programs
from weft.ir.actions import Action
from weft.ir.graph import Graph, Stage
from weft.ir.kinds import Kind
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.lower import messages, wires
from weft.schedules import REGISTRY
from weft.verify import verify
from weft.verify.channels import Blocking


@pytest.mark.parametrize(
    ("program", "depth"),
    [
        (programs.gpipe(4, 8), 0),
        (programs.one_f_one_b(4, 8), 1),
        (programs.interleaved(4, 8, 2), 1),
        (programs.zb_h1(4, 8), 1),
        (programs.chimera(), 1),
        (programs.contrastive("F0 F1 B0 B1"), 0),
        (programs.two_bw(4), 1),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_the_least_depth_is_reported(program: Program, depth: int) -> None:
    assert verify(program).channel_depth == depth
    assert verify(wires(program)).channel_depth == depth


@pytest.mark.parametrize(
    ("name", "stages_per_device", "depth"),
    [
        ("gpipe", 1, 0),
        ("1f1b", 1, 1),
        ("eager-1f1b", 1, 1),
        ("interleaved-1f1b", 2, 1),
        ("looped-bfs", 2, 2),
        ("chimera", 1, 1),
        ("zb-h1", 1, 1),
        ("zb-h2", 1, 1),
        ("zbv", 2, 1),
        ("interleaved-zb1p", 2, 2),
        ("dualpipe", 1, 1),
        ("dualpipev", 2, 1),
    ],
)
def test_only_gpipe_survives_rendezvous_and_two_deadlock_at_depth_1(
    name: str, stages_per_device: int, depth: int
) -> None:
    program = REGISTRY[name](devices=4, microbatches=8, stages_per_device=stages_per_device)
    assert verify(program).channel_depth == depth


def breadth_first(devices: int, microbatches: int) -> Program:
    """All forwards of the first stage before any of the second, two stages to a device."""
    lanes = [
        [
            Action(turn * devices + device, kind, m)
            for kind, turns in ((Kind.F, (0, 1)), (Kind.B, (1, 0)))
            for turn in turns
            for m in range(microbatches)
        ]
        for device in range(devices)
    ]
    placement = Placement.looped(devices, 2)
    return programs.program("looped-bfs", lanes, microbatches, placement=placement)


def test_breadth_first_needs_a_depth_of_two() -> None:
    assert verify(breadth_first(4, 8)).channel_depth == 2


def test_a_later_message_brings_those_before_it() -> None:
    """Device 1 starts with the last microbatch, which reaches it after all others."""
    lanes = ["0F0 0F1 0F2 0B2 0B1 0B0", "1F2 1B2 1F1 1B1 1F0 1B0"]
    assert verify(programs.program("last first", lanes, 3)).channel_depth == 0


@pytest.mark.parametrize("microbatches", range(1, 8))
def test_a_device_that_runs_ahead_fills_its_channel(microbatches: int) -> None:
    """Stage 3 reads 0, and 1 through 2; device 0 is done with 0 before it starts with 1.

    On the way back, all gradients for stage 0 wait while device 0 is busy with stage 1.
    """
    lanes = [
        " ".join(f"{stage}{letter}{m}" for letter, stage in order for m in range(microbatches))
        for order in (("F0", "F1", "B1", "B0"), ("F3", "B3"), ("F2", "B2"))
    ]
    program = programs.program(
        "ahead",
        lanes,
        microbatches,
        placement=Placement(((0, 0, 2, 1),)),
        graph=Graph((Stage(),) * 4, ((0, 3), (1, 2), (2, 3))),
    )
    assert verify(program).channel_depth == microbatches == by_hand(program)


@settings(deadline=None, max_examples=60)
@given(
    devices=st.integers(2, 4),
    groups=st.integers(1, 3),
    stages_per_device=st.integers(1, 3),
    make=st.sampled_from(["interleaved", "1f1b", "bfs", "zb-h1"]),
)
def test_the_machine_agrees_with_messages_moved_by_hand(
    devices: int, groups: int, stages_per_device: int, make: str
) -> None:
    microbatches = devices * groups
    program = {
        "interleaved": lambda: programs.interleaved(devices, microbatches, stages_per_device),
        "1f1b": lambda: programs.one_f_one_b(devices, microbatches),
        "bfs": lambda: breadth_first(devices, microbatches),
        "zb-h1": lambda: programs.zb_h1(devices, microbatches),
    }[make]()
    assert Blocking.of(program).least_depth == by_hand(program)


def by_hand(program: Program) -> int:
    return next(depth for depth in range(len(program)) if _Hands(program, depth).all_arrive())


class _Hands:
    """Devices that receive, run and send in turn, and queues between them."""

    def __init__(self, program: Program, depth: int) -> None:
        self.depth = depth
        self.lanes = [list(range(*program.bounds[i : i + 2])) for i in range(len(program.lanes))]
        self.place = [0] * len(self.lanes)  # actions done
        self.unsent: list[list[tuple[int, int]]] = [[] for _ in self.lanes]
        self.sent: dict[int, int] = defaultdict(int)
        self.received: dict[int, int] = defaultdict(int)
        self.inbox: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.outbox: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.done: set[int] = set()
        self.program = program
        found = messages(program)
        for channel in range(len(found.channels)):
            for number, m in enumerate(range(*found.bounds[channel : channel + 2])):
                self.outbox[int(found.producer[m])].append((channel, number))
                self.inbox[int(found.consumer[m])].append((channel, number))

    def all_arrive(self) -> bool:
        while any(self._moves(lane) for lane in range(len(self.lanes))):
            pass
        return all(
            place == len(lane) and not unsent
            for place, lane, unsent in zip(self.place, self.lanes, self.unsent, strict=True)
        )

    def _moves(self, lane: int) -> bool:
        if self.unsent[lane]:
            return self._sends(lane)
        if self.place[lane] == len(self.lanes[lane]):
            return False
        action = self.lanes[lane][self.place[lane]]
        for channel, number in self.inbox[action]:
            self.received[channel] = max(self.received[channel], number + 1)
        return self._runs(lane, action)

    def _sends(self, lane: int) -> bool:
        channel, number = self.unsent[lane][0]
        if number >= self.received[channel] + self.depth:
            return False
        self.sent[channel] = number + 1
        self.unsent[lane].pop(0)
        return True

    def _runs(self, lane: int, action: int) -> bool:
        has_come = all(self.sent[channel] > number for channel, number in self.inbox[action])
        local = [
            producer
            for producer, _ in self.program.dependencies.read_by(action)
            if self.program.device_of[producer] == self.program.device_of[action]
        ]
        if not has_come or not self.done.issuperset(local):
            return False
        self.done.add(action)
        self.place[lane] += 1
        self.unsent[lane] += self.outbox[action]
        return True
