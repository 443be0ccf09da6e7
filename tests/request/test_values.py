"""Values: whoever gives them, the same are taken, as they were meant, and the others refused."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import InputError
from weft.request import Training
from weft.request import values as of
from weft.request.values import Bundle, Value, picked, read

KINDS: tuple[Value, ...] = (
    of.Whole(least=0, most=9),
    of.Amount(),
    of.Amount(most=1, excluded=0),
    of.Text(most=4),
    of.OneOf(("light", "dark")),
    of.Switch(),
    of.File(),
    of.Numbers(int, "0,3", most=3),
    of.Numbers(float, "2,4,12"),
    of.Bytes(),
    of.LargeCount(),
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)


@pytest.mark.parametrize("value", KINDS, ids=str)
@given(found=ANYTHING)
def test_anything_is_taken_or_refused_in_words(value: Value, found: Any) -> None:
    try:
        taken = read(value, found, "the_size")
    except InputError as error:
        taken, refusal = None, str(error)
        assert re.fullmatch(rf"the size: .* is not {re.escape(value.words)}", refusal, re.DOTALL)
    assert taken is None or read(value, taken, "the_size") == taken


@pytest.mark.parametrize(
    ("value", "found", "taken"),
    [
        (of.COUNT, 4, 4),
        (of.AMOUNT, 1, 1.0),
        (of.Numbers(int, "3,4"), "3,4,4,3", (3, 4, 4, 3)),
        (of.Numbers(float, "1,2"), [1, 2.5], (1.0, 2.5)),
        (of.Numbers(float, "1,2"), [], ()),
        (of.Bytes(), "80GiB", 80 * 2.0**30),
        (of.LargeCount(), "4Mi", 4 * 2**20),
        (of.LargeCount(), "512k", 512_000),
        (of.LargeCount(), "4_000_000", 4_000_000),
        (of.Bytes(), "1.5 GB", 1.5e9),
        (of.Bytes(), 12, 12.0),
        (of.FILE, "my.txt", Path("my.txt")),
        (of.SWITCH, False, False),
    ],
)
def test_what_is_right_is_taken_as_it_is_meant(value: Value, found: Any, taken: Any) -> None:
    again = value.read(found)
    assert (again, type(again)) == (taken, type(taken))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (of.COUNT, 0),
        (of.COUNT, True),
        (of.COUNT, 2.0),
        (of.COUNT, "2"),
        (of.COUNT, 10**60),
        (of.AMOUNT, -1),
        (of.AMOUNT, math.inf),
        (of.AMOUNT, math.nan),
        (of.AMOUNT, 10**400),
        (of.Amount(most=1, excluded=1), 1),
        (of.TEXT, b"1f1b"),
        (of.OneOf(("light", "dark")), "blue"),
        (of.SWITCH, 1),
        (of.FILE, ["my.txt"]),
        (of.Numbers(int, "3,4"), "3,x"),
        (of.Numbers(int, "3,4", most=1), [1, 2]),
        (of.Numbers(float, "3,4"), {"3": 4}),
        (of.Bytes(), "80 parsecs"),
        (of.LargeCount(), "4M4"),
        (of.LargeCount(), "0k"),
        (of.LargeCount(), "9G9"),
        (of.LargeCount(), "_4"),
    ],
)
def test_what_is_wrong_is_refused(value: Value, found: Any) -> None:
    with pytest.raises(InputError):
        read(value, found, "size")


@dataclass(frozen=True, slots=True)
class Sized(Bundle):
    devices: int | None = of.given(of.COUNT)
    memory: float = of.given(of.Bytes(), 0.0)


def test_a_bundle_reads_its_fields() -> None:
    assert Sized() == Sized(None, 0.0)
    assert Sized(memory="1KiB").memory == 1024.0  # type: ignore[arg-type]
    with pytest.raises(InputError, match="devices: 0 is not a whole number from 1 to"):
        Sized(0)


def test_only_what_was_named_is_picked() -> None:
    assert picked(Sized, {"devices": 3, "memory": 5, "more": 1}, "devices") == Sized(3)


def test_bounds_of_training_hold_in_python_too() -> None:
    assert Training(learning_rate=1).learning_rate == 1.0
    for wrong in ({"steps": 0}, {"learning_rate": 0}, {"dropout": 1.0}, {"temper": 0}):
        with pytest.raises(InputError, match=f"{next(iter(wrong)).replace('_', ' ')}: "):
            Training(**wrong)
