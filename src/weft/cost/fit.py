"""Fits: the latency and bandwidth that explain how long messages of several sizes take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.cost.cost import Link
from weft.errors import InputError

ROUNDS = 50
TUNING = 1.345  # of Huber's weights: 95 % as efficient as least squares where errors are normal
SPREAD = 1.4826  # standard deviation over the median of absolute errors

Values = NDArray[np.float64]


class Fit(NamedTuple):
    """A link, and the share of the variance that it explains."""

    link: Link
    r_squared: float


def fitted(sizes: Sequence[float], seconds: Sequence[float]) -> Fit:
    """The line seconds = latency + size / bandwidth with the least relative errors.

    Errors are relative, so that the smallest messages decide the latency; Huber's weights keep a
    few outliers from deciding anything.
    """
    size, time = np.array(sizes, np.float64), np.array(seconds, np.float64)
    if len(np.unique(size)) < 2 or len(size) != len(time) or not (time > 0).all():
        raise InputError("a fit needs messages of two sizes, and how many seconds each took")
    weight = np.ones(len(size))
    line = (0.0, 0.0)
    for _ in range(ROUNDS):
        line = _line(size, time, weight / time**2)
        error = np.abs(line[0] + line[1] * size - time) / time
        scale = TUNING * SPREAD * float(np.median(error))
        weight = np.minimum(1.0, scale / np.maximum(error, 1e-300)) if scale else weight
    latency, slope = line
    return Fit(Link(latency, 1 / slope if slope > 0 else math.inf), _explained(line, size, time))


def _line(size: Values, time: Values, weight: Values) -> tuple[float, float]:
    """The latency and slope of least squares; none of them below 0."""
    total, mean = weight.sum(), np.average(size, weights=weight)
    slope = float((weight * (size - mean) * time).sum() / (weight * (size - mean) ** 2).sum())
    latency = float((weight * time).sum() / total - slope * mean)
    if slope <= 0:
        return float((weight * time).sum() / total), 0.0
    if latency < 0:
        return 0.0, float((weight * size * time).sum() / (weight * size**2).sum())
    return latency, slope


def _explained(line: tuple[float, float], size: Values, time: Values) -> float:
    """R squared."""
    rest = ((line[0] + line[1] * size - time) ** 2).sum()
    whole = ((time - time.mean()) ** 2).sum()
    return float(1 - rest / whole) if whole else 1.0
