"""A loss or a norm that is not finite means the same on all ranks: stop, skip, or go on."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.optim.lr_scheduler import StepLR

from tests.runtime.models import batches, is_same, linear, plain_descent, squared
from tests.runtime.ranks import run
from weft.errors import InputError, NonfiniteError
from weft.runtime import Pipeline, Reference, Scale
from weft.schedules import gpipe, one_f_one_b

(GOOD, TARGET), (OTHER, WANTED) = batches(4, 2)
BAD = GOOD.clone()
BAD[2, 0] = float("nan")  # in microbatch 2 of four


def large(output: Tensor, _: Tensor) -> Tensor:
    """Finite itself, with gradients of finite numbers whose squares are not, where output is."""
    return (output * 1e12).mean()


def pipeline_of(**settings: Any) -> Pipeline:
    settings = {"loss": squared, "optimizer": plain_descent, **settings}
    return Pipeline(linear(2), one_f_one_b(devices=2, microbatches=4), **settings)


def weights(pipeline: Pipeline) -> list[list[float]]:
    return [w.flatten().tolist() for m in pipeline.modules.values() for w in m.parameters()]


class Stopped(NamedTuple):
    said: str
    is_unchanged: bool
    goes_on: bool  # as if nothing had happened, where the user catches the error


def stopped(batch: Tensor, **settings: Any) -> Stopped:
    pipeline, alone = pipeline_of(**settings), pipeline_of(**settings)
    before, said = copy.deepcopy(weights(pipeline)), "nothing"
    try:
        pipeline.step(batch, TARGET)
    except NonfiniteError as error:
        said = str(error)
    is_unchanged = weights(pipeline) == before
    for one in (pipeline, alone):
        one.step(OTHER / 1e9, WANTED)
    return Stopped(said, is_unchanged, weights(pipeline) == weights(alone))


def stop_everywhere(transport: str) -> list[Stopped]:
    """In each rank."""
    return [stopped(BAD, transport=transport), stopped(GOOD * 1e9, loss=large, clip=1.0)]


@pytest.mark.parametrize("transport", ["shared", "gloo"])
def test_stopping_is_reported_on_all_ranks_and_changes_no_weight(transport: str) -> None:
    end = "; no weight was changed. nonfinite='skip' leaves such updates out"
    by_loss, by_norm = (
        Stopped(said + end, is_unchanged=True, goes_on=True)
        for said in (
            "the loss of step 1 is nan, by microbatch 2",
            "the norm of the gradients of step 1 is inf",
        )
    )
    assert run(2, stop_everywhere, transport) == [[by_loss, by_norm]] * 2


class Skipped(NamedTuple):
    is_skipped: list[bool]
    rates: list[float]
    is_unchanged: bool  # by what is skipped
    goes_on: bool  # as if nothing had been skipped


def skip_everywhere(**settings: Any) -> Skipped:
    """In each rank: a bad batch and a good one, beside the good one alone."""
    settings = {"scheduler": halving, "nonfinite": "skip", "clip": 1.0, **settings}
    pipeline, alone = pipeline_of(**settings), pipeline_of(**settings)
    before = copy.deepcopy(weights(pipeline))
    first = pipeline.step(BAD, TARGET)
    is_unchanged = weights(pipeline) == before
    second = pipeline.step(OTHER, WANTED)
    alone.step(OTHER, WANTED)
    return Skipped(
        [first.is_skipped, second.is_skipped],
        [group["lr"] for made in pipeline.optimizers for group in made.param_groups],
        is_unchanged,
        weights(pipeline) == weights(alone),
    )


def halving(optimizer: torch.optim.Optimizer) -> StepLR:
    return StepLR(optimizer, step_size=1, gamma=0.5)


def test_skipping_leaves_all_as_it_was() -> None:
    wanted = Skipped([True, False], [0.05], is_unchanged=True, goes_on=True)
    assert run(2, skip_everywhere) == [wanted] * 2


def skip_by_norm() -> tuple[bool, float, bool]:
    pipeline = pipeline_of(loss=large, nonfinite="skip", clip=1.0)
    before = copy.deepcopy(weights(pipeline))
    result = pipeline.step(GOOD * 1e9, TARGET)
    assert result.norm is not None
    return result.is_skipped, float(result.norm), weights(pipeline) == before


def test_an_infinite_norm_is_skipped_too() -> None:
    assert run(2, skip_by_norm) == [(True, float("inf"), True)] * 2


def test_an_update_looks_at_all_batches_that_piled_up() -> None:
    pipeline = pipeline_of()
    pipeline.step(BAD, TARGET, update=False)
    pipeline.step(GOOD, TARGET, update=False)
    with pytest.raises(NonfiniteError, match="the loss of step 1 is nan, by microbatch 2"):
        pipeline.step(OTHER, WANTED)


def test_ignoring_goes_on() -> None:
    pipeline = pipeline_of(nonfinite="ignore", clip=1.0)
    result = pipeline.step(BAD, TARGET)
    assert not result.is_skipped
    assert result.loss.isnan()
    assert torch.tensor(weights(pipeline)[0]).isnan().any()


def test_an_infinite_norm_that_is_ignored_clips_as_torch_does() -> None:
    """To zero: a step by gradients that are not clipped would be as large as they are."""
    pipeline = pipeline_of(nonfinite="ignore", loss=large, clip=1.0)
    before = copy.deepcopy(weights(pipeline))
    result = pipeline.step(GOOD * 1e9, TARGET)
    assert result.norm is not None
    assert result.norm.isinf()
    assert weights(pipeline) == before


def test_stopping_leaves_the_gradients_that_a_user_has() -> None:
    pipeline = pipeline_of(optimizer=None)
    pipeline.step(GOOD, TARGET)
    found = [weight for m in pipeline.modules.values() for weight in m.parameters()]
    before = [weight.grad for weight in found]
    with pytest.raises(NonfiniteError):
        pipeline.step(BAD, TARGET)
    assert all(map(is_same, [weight.grad for weight in found], before))


# what cannot be meant

MEANINGLESS: dict[str, dict[str, Any]] = {
    r"nonfinite='raise' is not known; use 'stop', 'skip' or 'ignore'": {"nonfinite": "raise"},
    r"clip=-1.0 is no norm": {"clip": -1.0},
    r"clip=0 is no norm": {"clip": 0},
    r"clip=nan is no norm": {"clip": float("nan")},
    r"clip='1.0' is no norm": {"clip": "1.0"},
    r"enlarged by 0.0": {"scale": 0.0},
    r"enlarged by -2.0": {"scale": -2.0},
    r"enlarged by inf": {"scale": float("inf")},
    r"enlarged by 'dynamic'": {"scale": "dynamic"},
}


@pytest.mark.parametrize("kind", [Pipeline, Reference])
@pytest.mark.parametrize("why", MEANINGLESS)
def test_what_updates_cannot_be_judged_by_is_refused_at_once(kind: Any, why: str) -> None:
    """A word that nobody knows would leave updates out, and such a norm turn weights into nan."""
    with pytest.raises(InputError, match=why):
        kind(linear(2), gpipe(devices=2, microbatches=4), loss=squared, **MEANINGLESS[why])


def test_words_that_nobody_knows_are_refused_at_once() -> None:
    words = {"clip_by": "'global', 'group' or 'stage'", "transport": "'auto', .* or 'mixed'"}
    for name, known in words.items():
        asked: Any = {name: "Shared"}
        with pytest.raises(InputError, match=f"{name}='Shared' is not known; use {known}"):
            Pipeline(linear(2), gpipe(devices=2, microbatches=4), loss=squared, **asked)


def test_a_scale_that_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="doubles after 0 updates"):
        Scale(interval=0)


def test_an_infinite_norm_to_clip_to_measures_alone() -> None:
    measured = pipeline_of(clip=math.inf)
    norm = measured.step(GOOD, TARGET).norm
    plain = pipeline_of()
    plain.step(GOOD, TARGET)
    assert norm is not None
    assert float(norm) > 0
    assert weights(measured) == weights(plain)
