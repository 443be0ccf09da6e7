"""Threads of a rank wait for each other in every lap, also when laps are counted anew."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event

import pytest
import torch

from weft.ir.kinds import Stream
from weft.runtime.lane.gates import Steps
from weft.runtime.lane.threads import Threads
from weft.runtime.lane.walk import Entry, Plan
from weft.runtime.ranks.clock import Recording
from weft.schedules import gpipe

PRODUCER, CONSUMER = 0, 1  # rows
CPU = torch.device("cpu")
SOON = 0.2  # seconds in which a thread that does not wait would have run


class Producer:
    """Gives the other thread time to run too early."""

    def __init__(self, is_read: Event) -> None:
        self._is_read, self.was_read_before = is_read, list[bool]()

    def wait(self, lap: int) -> None: ...

    def run(self, lap: int) -> None:
        self.was_read_before.append(self._is_read.wait(SOON))


class Consumer:
    def __init__(self, is_read: Event) -> None:
        self._is_read = is_read

    def wait(self, lap: int) -> None: ...

    def run(self, lap: int) -> None:
        self._is_read.set()


@pytest.fixture
def drive() -> Iterator[Threads]:
    found = Threads(gpipe(devices=1, microbatches=1), CPU)
    yield found
    found.close()


def test_a_sum_waits_for_its_gradients_after_a_restart(drive: Threads) -> None:
    is_read = Event()
    producer = Producer(is_read)
    given: Steps = {PRODUCER: producer, CONSUMER: Consumer(is_read)}
    steps, _ = drive.joined(given, {}, {CONSUMER: [PRODUCER]})
    plan = Plan(
        threads={
            Stream.COMPUTE: [Entry(PRODUCER, 0, steps[PRODUCER])],
            Stream.REDUCE: [Entry(CONSUMER, 0, steps[CONSUMER])],
        }
    )
    for _ in range(2):
        is_read.clear()
        drive.run(plan, 0, Recording())
        drive.finish()
        drive.restart()
    assert producer.was_read_before == [False, False]
