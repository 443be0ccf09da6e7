"""Partition: contiguous cuts of a chain of blocks into stages, judged by the simulated step.

    seed     the cut whose longest stage is the shortest, by dynamic programming
    moves    one layer from a stage to its neighbour; from a stage of the busiest device to any
             other stage, all cuts between them moved by one; then from any stage to any other

A light first or last stage may be better than an even one, where a schedule has its bubbles there:
only the simulator knows. Knows neither programs nor placements: its caller scores a cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.plan.chain import Chain, Layers, even

Score: TypeAlias = tuple[float, ...]  # less is better: seconds, then bytes
Judge: TypeAlias = Callable[[Layers], Score]

TRIALS = 400


def balanced(chain: Chain, stages: int) -> Layers:
    """The cut whose longest stage is shortest; among those, the one with the least spread.

    Every stage has a block; the embedding alone may be the first stage, the head the last.
    """
    weights, blocks = chain.seconds, chain.blocks.stages
    if blocks < stages:
        raise InputError(
            f"{chain.layers} layers do not fill {stages} stages; take fewer devices or stages on"
            " each"
        )
    sums = np.array([0.0, *accumulate(weights)])
    length = sums[None, :] - sums[:, None]  # of blocks from a row to a column
    length[np.tril_indices(blocks + 1)] = np.inf
    longest = _least(length, stages, np.maximum)[0]
    even_out = np.where(length <= longest * (1 + 1e-12), length**2, np.inf)
    bounds = _least(even_out, stages, np.add)[1]
    counts = np.diff(bounds)
    if chain.has_ends:
        counts[0] -= 1
        counts[-1] -= 1
    return tuple(counts.tolist())


def _least(
    price: NDArray[np.float64],
    stages: int,
    joined: Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]],
) -> tuple[float, list[int]]:
    """The least joined price of this many stages from the first block to the last, and cuts."""
    best, before = price[0], []
    for _ in range(stages - 1):
        reached = joined(best[:, None], price)
        before.append(reached.argmin(axis=0))
        best = reached.min(axis=0)
    bounds = [len(price) - 1]
    for last in reversed(before):
        bounds.append(int(last[bounds[-1]]))
    return float(best[-1]), [0, *reversed(bounds)]


def cuts(
    chain: Chain,
    pipes: Sequence[Sequence[int]],
    judge: Judge,
    *,
    trials: int = TRIALS,
    known: Layers | None = None,
) -> tuple[Layers, Score]:
    """The layers of each stage with the least score, and that score.

    `pipes` holds the device of every stage, as a placement does. Never worse than the even cut, the
    balanced one and one that is known, from which it starts.
    """
    stages = len(pipes[0])
    seeds = dict.fromkeys([*_seeds(chain, stages), *([known] if known else [])])
    score, best = min((judge(seed), seed) for seed in seeds)
    left = trials - len(seeds)
    seen = set(seeds)
    is_moving = True
    while is_moving:
        is_moving = False
        for moved in _moves(chain, best, pipes):
            if moved in seen:
                continue
            if left <= 0:
                return best, score
            seen.add(moved)
            left -= 1
            found = judge(moved)
            if found < score:
                best, score, is_moving = moved, found, True
                break
    return best, score


def _seeds(chain: Chain, stages: int) -> Iterator[Layers]:
    if chain.layers >= stages:
        yield even(chain, stages)
    yield balanced(chain, stages)


def _moves(chain: Chain, layers: Layers, pipes: Sequence[Sequence[int]]) -> Iterator[Layers]:
    """Cuts that differ by the stage of one layer: neighbours first, then from the busiest."""
    stages = range(len(layers))
    for stage in stages[:-1]:
        yield from moved(chain, layers, stage, stage + 1)
        yield from moved(chain, layers, stage + 1, stage)
    busiest = _busiest(chain, layers, pipes)
    others = [stage for stage in stages if stage not in busiest]
    for source in (*busiest, *others):
        for target in stages:
            if abs(source - target) > 1:
                yield from moved(chain, layers, source, target)


def moved(chain: Chain, layers: Layers, source: int, target: int) -> Iterator[Layers]:
    """One layer less here and one more there; only the ends may be left without any."""
    is_end = source in (0, len(layers) - 1)
    least = 0 if chain.has_ends and is_end and len(layers) > 1 else 1
    if layers[source] > least:
        counts = [*layers]
        counts[source] -= 1
        counts[target] += 1
        yield tuple(counts)


def _busiest(chain: Chain, layers: Layers, pipes: Sequence[Sequence[int]]) -> list[int]:
    """The stages of the device with the most work."""
    work = np.add.reduceat(chain.seconds, chain.bounds(layers)[:-1])
    of_device = np.zeros(max(map(max, pipes)) + 1)
    for pipe in pipes:
        np.add.at(of_device, [*pipe], work)
    device = int(of_device.argmax())
    return [stage for stage, held in enumerate(pipes[0]) if held == device]
