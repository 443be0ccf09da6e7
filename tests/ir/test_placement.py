"""Placement: the shapes by name, and free ones."""

from __future__ import annotations

import pytest

from weft.errors import InputError
from weft.ir.placement import Placement


def test_placements_by_name() -> None:
    assert Placement.straight(3).pipes == ((0, 1, 2),)
    assert Placement.looped(3, 2).pipes == ((0, 1, 2, 0, 1, 2),)
    assert Placement.wave(3).pipes == ((0, 1, 2, 2, 1, 0),)
    assert Placement.wave(2, 4).pipes == ((0, 1, 1, 0, 0, 1, 1, 0),)


def test_held_lists_pipe_by_pipe() -> None:
    both_ways = Placement(((0, 1), (1, 0)))
    assert both_ways.held == (((0, 0), (1, 1)), ((0, 1), (1, 0)))
    assert both_ways.weight_copies == 2
    assert Placement.looped(4, 3).weight_copies == 1


@pytest.mark.parametrize("pipes", [(), ((),), ((0, 1), (0,)), ((0, 2),)])
def test_holes_are_refused(pipes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(InputError):
        Placement(pipes)
