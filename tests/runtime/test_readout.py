"""Readouts: numbers are handed on in order, once they are there, whether or not anybody asks."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event

import pytest
import torch
from torch import Tensor

from weft.errors import RankError
from weft.runtime.device.readout import Readouts

LONG = 30.0  # seconds after which a test has failed


class Reached:
    """An event of a device that is reached when the test says so."""

    def __init__(self) -> None:
        self.is_reached = False

    def query(self) -> bool:
        return self.is_reached


class Late(Readouts):
    """Of a device that takes its time."""

    def __init__(self, *words: object, **named: bool) -> None:
        super().__init__(*words, **named)  # type: ignore[arg-type]
        self.events: list[Reached] = []

    def _launch(self, values: Tensor) -> tuple[Tensor, Reached]:
        self.events.append(Reached())
        return values, self.events[-1]


@pytest.fixture
def watched() -> Iterator[Late]:
    readouts = Late(is_watched=True)
    yield readouts
    readouts.close()


def test_on_a_cpu_numbers_are_there_at_once() -> None:
    found = list[list[float]]()
    Readouts().add(torch.tensor([1.5, 2.0]), found.append)
    assert found == [[1.5, 2.0]]


def test_nothing_is_handed_on_before_it_is_there_and_all_in_order() -> None:
    readouts, found = Late(), list[list[float]]()
    for number in range(3):
        readouts.add(torch.tensor([float(number)]), found.append)
    readouts.events[1].is_reached = True
    readouts._hand_on()
    assert found == []
    readouts.events[0].is_reached = readouts.events[2].is_reached = True
    readouts.settle("numbers")
    assert found == [[0.0], [1.0], [2.0]]


def test_whoever_waits_learns_why_a_number_will_not_come() -> None:
    def look(since: float, what: str) -> None:
        raise RankError(f"device 3 died; waiting for {what}")

    readouts = Late(look)
    readouts.add(torch.zeros(1), lambda _: None)
    with pytest.raises(RankError, match="device 3 died; waiting for the losses"):
        readouts.settle("the losses")


def test_the_watcher_hands_on_what_nobody_asks_for(watched: Late) -> None:
    for _ in range(3):  # also after it had nothing to do
        is_there = Event()
        watched.add(torch.zeros(1), lambda _, one=is_there: one.set())  # type: ignore[misc]
        assert not is_there.wait(0.01)
        watched.events[-1].is_reached = True
        assert is_there.wait(LONG)


def test_where_nobody_watches_or_asks_numbers_do_not_pile_up() -> None:
    readouts, found = Late(), list[list[float]]()
    for number in range(3):
        readouts.add(torch.tensor([float(number)]), found.append)
        readouts.events[-1].is_reached = True
    assert found == [[0.0], [1.0]]
    assert len(readouts._pending) == 1


def test_whoever_asks_learns_why_the_watcher_has_ended(watched: Late) -> None:
    def spoilt(_: list[float]) -> None:
        raise ValueError("spoilt")

    watched.add(torch.zeros(1), spoilt)
    watcher = watched._watcher
    assert watcher is not None
    watched.events[-1].is_reached = True
    watcher.join(LONG)
    with pytest.raises(ValueError, match="spoilt"):
        watched.settle("it")
    with pytest.raises(ValueError, match="spoilt"):
        watched.add(torch.zeros(1), spoilt)


def test_a_closed_one_watches_no_more() -> None:
    readouts = Late(is_watched=True)
    readouts.add(torch.zeros(1), lambda _: None)
    watcher = readouts._watcher
    assert watcher is not None
    readouts.close()
    assert not watcher.is_alive()
