"""The benchmark of plans: how it chooses them, and how it judges their predictions."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from weft.verify import verify

PLAN = Path(__file__).parents[2] / "benchmarks" / "plan"
LATE = {"forward": 0.0, "input_grad": 0.0, "weight_grad": 0.0}


@pytest.fixture(scope="module", autouse=True)
def _importable() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PLAN)
        yield


@pytest.fixture(scope="module")
def found() -> Any:
    return import_module("candidates")


@pytest.fixture(scope="module")
def blocks() -> dict[int, Any]:
    naps = import_module("naps")
    return {rows: naps.blocks_cost(14, rows, LATE) for rows in (2, 4)}


def test_pairs_that_are_close_are_not_counted() -> None:
    truth = import_module("truth")
    assert truth.verdict([1.0, 2.0, 3.0], [1.0, 2.2, 2.9]) == (1.0, 1.0, 0.0)
    swapped = truth.verdict([1.0, 2.0, 3.0], [1.0, 3.0, 2.0])
    assert swapped.tau == pytest.approx(1 / 3)
    assert not swapped.is_met
    close = truth.verdict([1.0, 2.0, 2.5], [1.02, 2.51, 2.5])
    assert (close.tau, close.is_met) == (1.0, True)
    assert close.foreseen == pytest.approx(1 / 3)
    late = truth.verdict([1.0, 1.1], [1.05, 1.0])
    assert late.best == pytest.approx(0.05)
    assert not late.is_met


def test_stages_take_what_their_blocks_take(found: Any, blocks: dict[int, Any]) -> None:
    layers = found.fair(blocks[2], 4)
    cost, whole = found.staged(blocks[2], layers), blocks[2].times
    assert sum(layers) == 14
    assert sum(cost.times.forward) == pytest.approx(sum(whole.forward))
    assert cost.times.forward[0] == pytest.approx(sum(whole.forward[: layers[0] + 1]))
    longest = [max(found.staged(blocks[2], cut).times.forward) for cut in (layers, (4, 4, 3, 3))]
    assert longest[0] < longest[1]


def test_plans_are_spread_from_the_best_on(found: Any, blocks: dict[int, Any]) -> None:
    work = found.Work(ranks=4, rows=16, sizes=(4,))
    all_of_them = [*found.candidates(work, blocks)]
    chosen = found.spread(all_of_them, blocks, 12, 2.0)
    seconds = [one.seconds(blocks[one.choice.rows]) for one in chosen]
    assert len({str(one.choice) for one in chosen}) == 12
    assert seconds[0] == min(one.seconds(blocks[one.choice.rows]) for one in all_of_them)
    assert 1.7 < seconds[-1] / seconds[0] < 2.3
    assert len({one.choice.schedule for one in chosen}) > 5
    assert all(verify(one.program).is_valid for one in chosen)
