"""What theory says: the largest stable rate of each method on random quadratics.

The loss is x·Hx / 2 with H = A Aᵀ and A normal, so an update is linear, whatever its delays:

    x(t+1) = x(t) + β (x(t) − x(t−1)) − η H Σ_τ P_τ x(t−τ)

where P_τ says for each coordinate what share of its stage's microbatches is τ updates stale. It is
stable where no eigenvalue of the matrix that takes x(t), x(t−1), … one update on is beyond 1.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
from methods import METHODS, MOMENTUM, Method
from numpy.typing import NDArray
from tasks import LAYERS

Matrix = NDArray[np.float64]

EACH = 2  # coordinates of a layer
SIZE = LAYERS * EACH
DRAWS = 20
LATE = 100  # an update long after the start
FINER = 12  # halvings of the last step of the search


def limits(name: str) -> dict[str, Any]:
    """Largest stable rates over those of synchronous updates, without momentum and with it."""
    method = METHODS[name]
    found: dict[str, list[float]] = {}
    for label, momentum in (("sgd", 0.0), ("momentum", MOMENTUM)):
        found[label] = [
            largest(method, _drawn(draw), momentum)
            / largest(METHODS["synchronous"], _drawn(draw), momentum)
            for draw in range(DRAWS)
        ]
    return {"method": name, **found}


def bound(delay: int) -> float:
    """Of rate times curvature, for one coordinate that is that many updates stale."""
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1)))


def largest(method: Method, curvature: Matrix, momentum: float) -> float:
    """The rate at which stability is first lost."""
    shares = _shares(method)
    rate = 0.002 * 2 * (1 + momentum) / np.linalg.eigvalsh(curvature).max()
    while is_stable(rate * 1.1, curvature, shares, momentum):
        rate *= 1.1
    low, high = rate, rate * 1.1
    for _ in range(FINER):
        middle = (low + high) / 2
        if is_stable(middle, curvature, shares, momentum):
            low = middle
        else:
            high = middle
    return float(low)


def is_stable(rate: float, curvature: Matrix, shares: list[Matrix], momentum: float) -> bool:
    """Whether no eigenvalue of an update is beyond 1."""
    past = max(len(shares), 2)
    update = np.eye(past * SIZE, k=-SIZE)
    for delay, share in enumerate(shares):
        update[:SIZE, delay * SIZE :][:, :SIZE] -= rate * curvature * share
    update[:SIZE, :SIZE] += (1 + momentum) * np.eye(SIZE)
    update[:SIZE, SIZE : 2 * SIZE] -= momentum * np.eye(SIZE)
    return bool(np.abs(np.linalg.eigvals(update)).max() < 1 + 1e-9)


def _shares(method: Method) -> list[Matrix]:
    """By delay: what each coordinate's share of it is."""
    found: Counter[tuple[int, int]] = Counter()
    for layer in range(LAYERS):
        stage = layer * method.stages // LAYERS
        for microbatch in range(method.microbatches):
            delay = LATE - method.version(LATE, microbatch, stage)
            for lag, share in _read(delay, method.is_predicting):
                found[lag, layer] += share
    lags = range(1 + max(lag for lag, _ in found))
    table = np.array([[found[lag, layer] for layer in range(LAYERS)] for lag in lags], float)
    return list(np.repeat(table / method.microbatches, EACH, axis=1))


def _read(delay: int, is_predicting: bool) -> list[tuple[int, int]]:
    """What a stage computes with: an old version, or two of them and a straight line."""
    if is_predicting and delay:
        return [(delay, 1 + delay), (delay + 1, -delay)]
    return [(delay, 1)]


def _drawn(draw: int) -> Matrix:
    factor = np.random.default_rng(draw).normal(size=(SIZE, SIZE))
    made: Matrix = factor @ factor.T
    return made
