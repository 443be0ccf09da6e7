"""Transfers in one order: pipelines train as ever, and launch each receive before its reader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.runtime.asynchrony import momentum
from tests.runtime.models import batches, squared
from tests.runtime.test_both import differences, slices
from weft.cost import Cost, Share
from weft.ir.program import Program
from weft.lower import one_wire
from weft.runtime import Pipeline
from weft.runtime.lane.ring import Ring
from weft.runtime.ranks import world
from weft.runtime.ranks.world import World
from weft.runtime.task import Task
from weft.runtime.transport.loopback import Loopback
from weft.runtime.transport.message import (
    Meet,
    Message,
    Post,
    Receive,
    Route,
    Shapes,
    Unknown,
    Values,
)
from weft.schedules import REGISTRY, Shape


class Ordered(Loopback):
    """As NCCL has it, within one process: what is read was posted before."""

    made: list[Ordered] = []  # noqa: RUF012

    def __init__(self, *, is_crossing: bool = False) -> None:
        super().__init__(is_crossing=is_crossing)
        self.posted: set[Message] = set()
        self.groups = 0
        self.made.append(self)

    def poster(self, route: Route, shapes: Shapes) -> Post:
        return lambda: self.posted.add(route.message)

    def post(self, is_last: bool) -> None:
        self.groups += is_last

    def receiver(self, route: Route, shapes: Shapes) -> Receive:
        receive = super().receiver(route, shapes)

        def take() -> Values:
            assert route.message in self.posted, f"{route} was not posted"
            self.posted.remove(route.message)
            return receive()

        return take if self.is_far(route.source, route.destination) else receive

    def meeting(self, outgoing: Sequence[Route], incoming: Sequence[Route]) -> Meet:
        receives = [Loopback.receiver(self, route, Unknown()) for route in incoming]
        return lambda: [receive() for receive in receives]

    def awaited(self) -> Sequence[int]:
        return ()

    @staticmethod
    def is_far(source: int, destination: int) -> bool:
        return True


def over(task: Task, alone: World, cost: Cost | None) -> Task:
    """As `Task.over` with NCCL."""
    walked = one_wire(task.program, cost, is_ordered=Ordered.is_far)
    return replace(task, program=walked, ring=Ring(walked))


@pytest.fixture(autouse=True)
def ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Task, "over", over)
    monkeypatch.setattr(world, "Loopback", Ordered)
    monkeypatch.setattr(world.Alone, "keeps_order", lambda *_: True)
    Ordered.made.clear()


def program_of(name: str, **more: Any) -> Program:
    least, most = REGISTRY[name].stages_per_device
    shape = Shape(devices=4, microbatches=8, stages_per_device=least if most else 2, updates=6)
    return REGISTRY[name].program(replace(shape, **more))


@pytest.mark.parametrize("name", [schedule.name for schedule in REGISTRY])
def test_every_schedule_trains_bitwise_with_transfers_in_one_order(name: str) -> None:
    program = program_of(name)
    steps = 6 if program.period is not None else 3
    assert differences(slices(program), program, [True] * steps, transport="loopback") == []
    assert Ordered.made[0].groups


def on_two_hosts(source: int, destination: int) -> bool:
    """Devices 0 and 1 are on one host, 2 and 3 on another."""
    return source // 2 != destination // 2


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "zbv", "chimera", "pipedream-2bw"])
def test_only_what_goes_from_host_to_host_keeps_the_order(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ordered, "is_far", staticmethod(on_two_hosts))
    program = program_of(name)
    steps = 6 if program.period is not None else 3
    assert differences(slices(program), program, [True] * steps, transport="loopback") == []
    with Pipeline(
        slices(program), program, loss=squared, optimizer=momentum, transport="loopback"
    ) as pipeline:
        channels = [lane.channel for lane in pipeline.program.lanes if lane.channel is not None]
        assert channels
        assert not any(on_two_hosts(one.source, one.destination) for one in channels)
        assert any(lane.is_one_wire for lane in pipeline.program.lanes)


def test_the_program_of_a_pipeline_says_in_which_order() -> None:
    program = program_of("1f1b")
    with Pipeline(slices(program), program, loss=squared, transport="loopback") as pipeline:
        wires = [lane for lane in pipeline.program.lanes if lane.is_one_wire]
        assert [lane.device for lane in wires] == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "zbv", "dualpipev"])
def test_who_reads_a_message_is_launched_after_its_group(name: str) -> None:
    program = program_of(name)
    cost = Share().cost(program)  # messages that take no time are there at once, in groups
    with Pipeline(
        slices(program), program, loss=squared, transport="loopback", cost=cost
    ) as pipeline:
        lanes: Any = pipeline._parts.training._lanes
        plan, ends = lanes._planner.until(program.microbatches), lanes.binder.wires.ends
        order = [entry.row for entries in plan.threads.values() for entry in entries]
        place, needs = {row: at for at, row in enumerate(order)}, pipeline.program.dependencies
        assert any(row != end for row, end in ends.items())
        for row in lanes.binder.wires.receives:
            for reader in needs.consumer[needs.producer == row].tolist():
                assert place[ends[row]] < place[reader]


def test_evaluation_keeps_the_order_too() -> None:
    program = program_of("interleaved-1f1b")
    stages = slices(program)
    ((batch, target),) = batches(16, 1)
    with Pipeline(stages, program, loss=squared, transport="loopback") as pipeline:
        found = pipeline.evaluate(batch, target).loss
    value = batch
    for stage in stages:
        value = stage.eval()(value)
    assert found.item() == pytest.approx(squared(value, target).item(), rel=1e-5)


@pytest.mark.parametrize("name", ["interleaved-1f1b", "pipedream-2bw"])
def test_what_is_compressed_is_posted_before_it_is_read_too(name: str) -> None:
    program = program_of(name)
    settings: dict[str, Any] = {"transport": "loopback", "compress": "fp8"}
    assert differences(slices(program), program, [True] * 3, **settings) == []
    assert Ordered.made[0].groups
