"""Fits: known links come back from the times that they make."""

from __future__ import annotations

import math

import numpy as np
import pytest

from weft.cost import Link, fitted
from weft.errors import InputError

SIZES = [4096.0 * 4**power for power in range(7)]


def times(link: Link) -> list[float]:
    return [link.latency + size / link.bandwidth for size in SIZES]


@pytest.mark.parametrize("link", [Link(4e-5, 5e9), Link(1e-6, 4e11), Link(2e-3, 1e8)])
def test_a_link_comes_back_from_its_times(link: Link) -> None:
    fit = fitted(SIZES, times(link))
    assert fit.link.latency == pytest.approx(link.latency, rel=1e-6)
    assert fit.link.bandwidth == pytest.approx(link.bandwidth, rel=1e-6)
    assert fit.r_squared == pytest.approx(1)


def test_noise_moves_it_a_little() -> None:
    noise = np.random.default_rng(0).normal(1, 0.03, len(SIZES))
    fit = fitted(SIZES, times(Link(4e-5, 5e9)) * noise)
    assert fit.link.latency == pytest.approx(4e-5, rel=0.1)
    assert fit.link.bandwidth == pytest.approx(5e9, rel=0.1)
    assert 0.95 < fit.r_squared < 1


@pytest.mark.parametrize("outlier", range(len(SIZES)))
def test_one_outlier_hardly_moves_it(outlier: int) -> None:
    noise = np.random.default_rng(1).normal(1, 0.01, len(SIZES))
    noise[outlier] = 10
    fit = fitted(SIZES, times(Link(4e-5, 5e9)) * noise)
    assert fit.link.latency == pytest.approx(4e-5, rel=0.15)
    assert fit.link.bandwidth == pytest.approx(5e9, rel=0.15)


def test_a_line_through_less_than_nothing_has_no_latency() -> None:
    fit = fitted([1.0, 2.0, 3.0], [0.1, 1.1, 2.1])
    assert fit.link.latency == 0
    assert 0 < fit.link.bandwidth < math.inf


def test_times_that_do_not_grow_have_no_limit() -> None:
    fit = fitted([1.0, 2.0, 3.0], [0.5, 0.5, 0.4])
    assert fit.link.bandwidth == math.inf
    assert 0.4 <= fit.link.latency <= 0.5


@pytest.mark.parametrize(
    ("sizes", "seconds"), [([], []), ([8, 8], [1, 2]), ([1, 2], [1, 0]), ([1, 2], [1])]
)
def test_what_makes_no_line_is_refused(sizes: list[float], seconds: list[float]) -> None:
    with pytest.raises(InputError, match="two sizes"):
        fitted(sizes, seconds)
