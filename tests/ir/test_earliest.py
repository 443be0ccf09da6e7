"""The in-order machine: both ways of running it agree, and stuck is infinite."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from weft.ir import earliest as machine
from weft.ir.earliest import Precedence, earliest
from weft.ir.side_by_side import earliest_of_each


@st.composite
def precedences(draw: st.DrawFn) -> tuple[Precedence, list[float]]:
    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    slots = sum(lengths)
    count = draw(st.integers(0, 12)) if slots else 0
    slot = st.integers(0, max(slots - 1, 0))
    pairs = draw(st.lists(st.tuples(slot, slot), min_size=count, max_size=count))
    seconds = st.sampled_from([0.0, 0.5, 1.0, 3.25])
    delays = draw(st.lists(seconds, min_size=count, max_size=count))
    durations = draw(st.lists(seconds, min_size=slots, max_size=slots))
    return (
        Precedence(
            bounds=np.cumsum([0, *lengths], dtype=np.int64),
            consumer=np.array([a for a, _ in pairs], np.int64),
            producer=np.array([b for _, b in pairs], np.int64),
            delay=np.array(delays, np.float64),
        ),
        durations,
    )


@given(precedences())
def test_narrow_and_wide_agree_bit_for_bit(case: tuple[Precedence, list[float]]) -> None:
    precedence, durations = case
    starts = []
    for wide in (0, 100):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(machine, "WIDE", wide)
            patch.setattr(machine, "MOST_COLUMNS", 100)
            starts.append(earliest(precedence, np.array(durations)).tolist())
    assert starts[0] == starts[1]


@given(precedences())
def test_a_start_is_the_latest_of_lane_and_arrivals(
    case: tuple[Precedence, list[float]],
) -> None:
    precedence, durations = case
    start = earliest(precedence, np.array(durations))
    end = start + durations
    for slot in np.flatnonzero(np.isfinite(start)).tolist():
        bounds = [0.0]
        if slot not in precedence.bounds[:-1]:
            bounds.append(end[slot - 1])
        rows = np.flatnonzero(precedence.consumer == slot).tolist()
        bounds += [
            end[precedence.producer[row]] + precedence.delay[row]
            for row in rows
            if not _is_lane_mate(precedence, row)
        ]
        assert start[slot] == max(bounds)


def _is_lane_mate(precedence: Precedence, row: int) -> bool:
    """A lane mate's value is there when the lane gets on, whatever delay was given."""
    lanes = np.searchsorted(
        precedence.bounds, [precedence.consumer[row], precedence.producer[row]], "right"
    )
    return bool(lanes[0] == lanes[1])


def test_a_cycle_never_starts() -> None:
    crossed = Precedence(
        bounds=np.array([0, 2, 4]),
        consumer=np.array([0, 2]),
        producer=np.array([3, 1]),
        delay=np.zeros(2),
    )
    assert earliest(crossed, np.ones(4)).tolist() == [np.inf] * 4


def test_backwards_gives_the_tail() -> None:
    chain = Precedence(
        bounds=np.array([0, 1, 2, 3]),
        consumer=np.array([1, 2]),
        producer=np.array([0, 1]),
        delay=np.array([0.5, 0.25]),
    )
    assert earliest(chain, np.array([1.0, 2.0, 3.0])).tolist() == [0.0, 1.5, 3.75]
    tail = earliest(chain.reversed(), np.array([3.0, 2.0, 1.0]))
    assert tail[::-1].tolist() == [5.75, 3.25, 0.0]


@given(precedences(), st.integers(1, 3))
def test_many_runs_at_once_are_each_as_alone(
    case: tuple[Precedence, list[float]], runs: int
) -> None:
    precedence, durations = case
    each = np.array(durations, np.float64)[:, None] * np.arange(1.0, runs + 1)
    alone = [earliest(precedence, column) for column in each.T]
    assume(np.isfinite(alone[0]).all())
    together = earliest_of_each(precedence, each)
    assert [column.tolist() for column in together.T] == [start.tolist() for start in alone]
