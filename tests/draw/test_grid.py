"""Grids: columns are equal lengths of time, and say who works in each."""

from __future__ import annotations

import pytest

from weft.cost import Share
from weft.draw.bands import devices
from weft.draw.grid import IDLE, Cell, Grid, cells, fit
from weft.draw.view import WHOLE, View
from weft.schedules import REGISTRY, one_f_one_b
from weft.simulate import simulate
from weft.timeline import Timeline


def timeline(name: str = "1f1b", share: Share | None = None) -> Timeline:
    program = REGISTRY[name](devices=4, microbatches=8)
    return simulate(program, (share or Share()).cost(program))


def grid_of(drawn: Timeline, room: int, widest: int) -> Grid:
    (grid,) = fit(drawn, WHOLE.panels(drawn), room=room, widest=widest)
    return grid


def widths(drawn: Timeline, room: int, widest: int) -> list[set[int]]:
    """The widths of the first device's cells of equal length, shortest first."""
    row = grid_of(drawn, room, widest).rows(drawn, devices(drawn.program))[0]
    first = drawn.program.first_of_slot
    found: dict[float, set[int]] = {}
    for cell in cells(row):
        if cell.slot != IDLE:
            action = first[cell.slot]
            length = round(float(drawn.end[action] - drawn.start[action]), 9)
            found.setdefault(length, set()).add(cell.width)
    return [found[length] for length in sorted(found)]


def test_equal_actions_are_equally_wide() -> None:
    assert widths(timeline(), room=100, widest=9) == [{3}, {6}]
    assert widths(timeline(), room=70, widest=9) == [{2}, {4}]


def test_nothing_grows_wider_than_its_label_needs() -> None:
    assert widths(timeline(), room=1000, widest=4) == [{4}, {8}]


def test_lengths_without_a_common_measure_are_rounded() -> None:
    drawn = timeline(share=Share(forward=0.7071, input_grad=1.4142, weight_grad=0.3141))
    short, long = widths(drawn, room=100, widest=9)
    assert max(short) - min(short) <= 1
    assert max(long) - min(long) <= 1


@pytest.mark.parametrize("name", [schedule.name for schedule in REGISTRY])
@pytest.mark.parametrize("room", [8, 37, 200])
def test_a_grid_keeps_to_its_room(name: str, room: int) -> None:
    grid = grid_of(timeline(name), room, 5)
    assert 1 <= grid.columns <= room


def test_columns_add_up_to_the_work_of_each_device() -> None:
    drawn = timeline("zbv")
    grid = grid_of(drawn, 200, 9)
    for device, row in enumerate(grid.rows(drawn, devices(drawn.program))):
        busy = sum(cell.width for cell in cells(row) if cell.slot != IDLE)
        assert busy / grid.per_second == pytest.approx(drawn.device_work[device])


def test_a_row_is_read_as_cells() -> None:
    drawn = simulate(one_f_one_b(devices=2, microbatches=1))
    grid = grid_of(drawn, 6, 9)
    assert [cells(row) for row in grid.rows(drawn, devices(drawn.program))] == [
        [Cell(0, 1), Cell(IDLE, 3), Cell(1, 2)],
        [Cell(IDLE, 1), Cell(2, 1), Cell(3, 2), Cell(IDLE, 2)],
    ]


def test_panels_share_a_scale() -> None:
    drawn = timeline()
    view = View(phases=3)
    grids = fit(drawn, view.panels(drawn), room=60, widest=9)
    assert len(grids) == 3
    assert len({grid.per_second for grid in grids}) == 1
    assert max(grid.columns for grid in grids) <= 60
