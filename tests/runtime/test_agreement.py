"""Ranks that do not mean the same are refused, all of them, before anything is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.runtime.models import WIDTH, batches, likelihood, linear, squared, tied
from tests.runtime.ranks import run
from weft.errors import Disagreement, InputError
from weft.runtime import Pipeline
from weft.schedules import chimera, gpipe, one_f_one_b

SHAPE = {"devices": 2, "microbatches": 2}


def refusals() -> dict[str, str]:
    """In each rank: what is said where rank 1 differs from rank 0."""
    other = dist.get_rank() == 1
    cases: dict[str, Callable[[], object]] = {
        "program": lambda: plain((one_f_one_b if other else gpipe)(**SHAPE)),
        "seed": lambda: plain(gpipe(**SHAPE), seed=int(other)),
        "stages": lambda: Pipeline(
            [nn.Linear(WIDTH, 3 if other else 4), nn.ReLU()], gpipe(**SHAPE), loss=squared
        ),
        "transport": lambda: plain(gpipe(**SHAPE), transport="gloo" if other else "shared"),
        "copies": lambda: Pipeline(
            linear(2) if other else linear(3)[1:], chimera(**SHAPE), loss=squared
        ),
        "ends": lambda: Pipeline(shifted(tied(2), float(other)), gpipe(**SHAPE), loss=likelihood),
        "batch": lambda: plain(gpipe(**SHAPE)).step(BATCH + other, TARGET),
        "target": lambda: plain(gpipe(**SHAPE)).step(BATCH, TARGET + other),
        "shape of the batch": lambda: plain(gpipe(**SHAPE)).step(
            BATCH[:2] if other else BATCH, TARGET[:2] if other else TARGET
        ),
    }
    return {name: said(case) for name, case in cases.items()}


((BATCH, TARGET),) = batches(4, 1)


def plain(program: Any, **settings: Any) -> Pipeline:
    return Pipeline(linear(2), program, loss=squared, **settings)


def shifted(stages: list[nn.Module], shift: float) -> list[nn.Module]:
    """The same stages, each of their weights moved by so much."""
    with torch.no_grad():
        for weight in {weight for stage in stages for weight in stage.parameters()}:
            weight.add_(shift)
    return stages


def said(case: Callable[[], object]) -> str:
    try:
        case()
    except Disagreement as error:
        return str(error)
    return "nothing"


def test_what_differs_is_refused_on_all_ranks() -> None:
    first, second = run(2, refusals)
    assert first == second
    agreed = "program, seed or stages of ranks [1] differ from those of rank 0"
    data = "the first batch or target of ranks [1] differ from those of rank 0"
    weights = "from different weights; seed all ranks alike"
    assert first == {
        "program": agreed,
        "seed": agreed,
        "stages": agreed,
        "transport": "transports of ranks [1] differ from those of rank 0",
        "copies": f"ranks 0 and 1 start stage 1 {weights}",
        "ends": f"ranks 0 and 1 start 0.weight of stage 0 {weights}",
        "batch": data,
        "target": data,
        "shape of the batch": data,
    }


def too_few() -> str:
    """In each rank: what is said where a program has more devices than there are ranks."""
    try:
        Pipeline(linear(3), gpipe(devices=3, microbatches=2), loss=squared)
    except InputError as error:
        return str(error)
    return "nothing"


def test_a_program_needs_a_rank_for_each_device() -> None:
    wanted = "gpipe has 3 devices, the process group 2 ranks; start one rank for each device"
    assert run(2, too_few) == [wanted] * 2


# losses


def losses_sent() -> tuple[list[list[float]], float]:
    """In each rank: all losses; rank 0 has read those of a step before the next began."""
    pipeline = plain(one_f_one_b(**SHAPE), nonfinite="ignore")
    results = []
    for batch, target in batches(4, 3):
        results.append(pipeline.step(batch, target))
        if dist.get_rank() == 0:
            assert results[-1].loss.isfinite()
    evaluated = pipeline.evaluate(BATCH, TARGET)
    return [result.losses.tolist() for result in results], float(evaluated.loss)


def test_one_rank_may_read_losses_alone_and_all_read_the_same() -> None:
    first, second = run(2, losses_sent)
    assert first == second
