"""Units: numbers of four digits, in the largest unit of which there is one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.cost import DEVICES, MODELS, Provenance, derive
from weft.cost.units import BYTES, NONE, SECONDS, fitting
from weft.draw.units import is_physical, memory_unit, time_unit
from weft.schedules import one_f_one_b
from weft.simulate import simulate

PROGRAM = one_f_one_b(devices=4, microbatches=8)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (19.926, "19.93 s"),
        (1.0, "1 s"),
        (0.9999, "999.9 ms"),
        (0.0123, "12.3 ms"),
        (98e-6, "98 us"),
        (3.33e-6, "3.33 us"),
        (1.5e-9, "1.5 ns"),
        (1.5e-12, "0.0015 ns"),
        (86400.0, "86400 s"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    assert fitting(seconds, SECONDS).amount(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(80e9, "74.51 GiB"), (2.0**20, "1 MiB"), (1000, "1000 bytes"), (3, "3 bytes"), (0, "0 GiB")],
)
def test_bytes(size: float, text: str) -> None:
    assert fitting(size, BYTES).amount(size) == text


def test_in_one_unit_small_numbers_stay_short() -> None:
    assert SECONDS[0].number(13e-6) == "0"
    assert SECONDS[0].number(0.00126) == "0.0013"


def test_unit_costs_have_no_unit() -> None:
    timeline = simulate(PROGRAM)
    assert not is_physical(timeline)
    assert time_unit(timeline) == memory_unit(timeline) == NONE
    assert NONE.amount(1 / 3) == "0.333333"


def test_what_is_measured_or_says_how_it_is_known_is_in_seconds() -> None:
    derived = simulate(PROGRAM, derive(PROGRAM, MODELS["gpt-6.2b"], DEVICES["h100"]))
    assert (time_unit(derived).name, memory_unit(derived).name) == ("ms", "GiB")
    plain = simulate(PROGRAM)
    assert time_unit(replace(plain, is_measured=True)).name == "s"
    given = replace(plain.cost, provenance={"forward": (Provenance.GIVEN,) * 4})
    assert time_unit(replace(plain, cost=given)).name == "s"
