"""Cuts of layers into stages: never worse than even ones, better where a head is heavy."""

from __future__ import annotations

from itertools import combinations, pairwise, product

import pytest

from tests.plan.cases import DEVICE, HEAVY, MODEL
from weft.cost import Derivation, Layout
from weft.ir.placement import Placement
from weft.plan.blocks import derived
from weft.plan.chain import Chain, Layers, even
from weft.plan.clock import Clock
from weft.plan.partition import Score, balanced, cuts
from weft.schedules import REGISTRY, Schedule


def every_cut(chain: Chain, stages: int) -> list[Layers]:
    """All cuts of blocks into stages that have one at least."""
    blocks = chain.blocks.stages
    found = []
    for inner in combinations(range(1, blocks), stages - 1):
        bounds = [0, *inner, blocks]
        counts = [end - start for start, end in pairwise(bounds)]
        counts[0] -= 1
        counts[-1] -= 1
        found.append(tuple(counts))
    return found


def longest(chain: Chain, layers: Layers) -> float:
    sums = chain.sums(layers)
    return float((sums.forward + sums.input_grad + sums.weight_grad).max())


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
def test_the_seed_has_the_shortest_longest_stage(stages: int) -> None:
    chain = derived(Derivation(model=HEAVY, device=DEVICE), 2)
    found = balanced(chain, stages)
    best = min(longest(chain, layers) for layers in every_cut(chain, stages))
    assert longest(chain, found) == pytest.approx(best)
    assert sum(found) == HEAVY.layers


PLACED = [
    (REGISTRY["1f1b"], Placement.straight(4)),
    (REGISTRY["interleaved-1f1b"], Placement.looped(2, 2)),
    (REGISTRY["zbv"], Placement.wave(2)),
    (REGISTRY["hanayo"], Placement.wave(2)),
    (REGISTRY["interleaved-zb1p"], Placement.looped(2, 2)),
    (REGISTRY["v-half"], Placement.wave(2)),
    (REGISTRY["zb-h1"], Placement.straight(4)),
]


@pytest.mark.parametrize(
    ("schedule", "placement"), PLACED, ids=lambda one: getattr(one, "name", "")
)
def test_a_cut_is_the_best_and_never_worse_than_an_even_one(
    schedule: Schedule, placement: Placement
) -> None:
    for model, microbatches in product((MODEL, HEAVY), (2, 8)):
        chain = derived(Derivation(model=model, device=DEVICE), placement.devices)
        clock = Clock(schedule(devices=placement.devices, microbatches=microbatches), Layout())

        def judge(layers: Layers, chain: Chain = chain, clock: Clock = clock) -> Score:
            return (clock.seconds(chain, layers),)

        layers, score = cuts(chain, placement.pipes, judge)
        assert score == judge(layers)
        assert score <= judge(even(chain, 4))
        best = min(judge(one) for one in every_cut(chain, 4))
        assert score[0] == pytest.approx(best[0])
        if model is HEAVY:
            assert score < judge(even(chain, 4))


def test_ties_go_to_less_memory() -> None:
    """By the second number of a score, as here: all cuts take as long."""
    chain = derived(Derivation(model=MODEL, device=DEVICE), 2)
    layers, _ = cuts(chain, ((0, 1),), lambda layers: (1.0, abs(layers[0] - 5)))
    assert layers == (5, 1)
