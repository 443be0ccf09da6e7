"""The search, beside trying everything."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.plan.cases import HEAVY, MODEL, MOE, question
from tests.plan.test_partition import every_cut
from weft.cost import Link, Transformer
from weft.errors import InputError, ProgramError
from weft.plan.bench import Bench
from weft.plan.needs import leanest, needs, shortage
from weft.plan.progress import Found
from weft.plan.question import Choices, Question
from weft.plan.refine import improved
from weft.plan.scan import may_fit
from weft.plan.search import search, searching
from weft.plan.space import Candidate, Space
from weft.plan.trial import Ease, Trial, Trier, eases

FEW = Choices(schedule="1f1b,zbv,interleaved-1f1b", max_stages_per_device=2)  # type: ignore[arg-type]


def everything(asked: Question) -> list[Candidate]:
    return [*Space(asked).candidates]


def brute(asked: Question) -> list[Trial]:
    """Every candidate with its seed cut and every relief, in full, if it fits."""
    bench = Bench(asked)
    found = []
    space = Space(asked)
    whole = map(space.with_whole_optimizer, space.candidates)
    for candidate in (*space.candidates, *(one for one in whole if one is not None)):
        trier = Trier(bench, candidate, is_full=True)
        try:
            layers = trier.seed
            ways = [Ease(), *eases(trier, layers)]
            trials = [trier.tried(layers, ease) for ease in ways]
        except (InputError, ProgramError):
            continue
        found += [trial for trial in trials if trial.peak <= trier.capacity]
    return sorted(found, key=lambda trial: trial.order)


@pytest.mark.parametrize(
    ("model", "memory"), [(MODEL, 1e9), (MODEL, 2.4e8), (HEAVY, 3e8), (MOE, 4e8)]
)
def test_a_small_search_finds_what_trying_everything_finds(
    model: Transformer, memory: float
) -> None:
    asked = question(model=model, memory=memory, choices=FEW)
    best = brute(asked)[0]
    found = search(asked)
    assert found.is_done
    fastest = min(one.trial.order for one in found.proposals)
    assert fastest <= best.order  # layers moved between stages may be faster still
    assert fastest[0] > 0.9 * best.seconds
    assert found.tried + found.hopeless == found.candidates == len(everything(asked))


@pytest.mark.parametrize(
    ("memory", "chosen"),
    [
        (2.8e8, Choices(schedule="zbv", tensor=2, pipeline=2, offload="none")),  # type: ignore[arg-type]
        (2.6e8, Choices(schedule="zbv", tensor=2, pipeline=2, offload="none")),  # type: ignore[arg-type]
        (3e8, Choices(schedule="1f1b", tensor=1, pipeline=4, offload="none")),  # type: ignore[arg-type]
        (1e9, Choices(schedule="interleaved-zb1p", tensor=1, pipeline=2, optimizer="shared")),  # type: ignore[arg-type]
        (1e9, Choices(schedule="v-half", tensor=2, pipeline=2)),  # type: ignore[arg-type]
    ],
)
def test_no_cut_is_missed(memory: float, chosen: Choices) -> None:
    """Also where the seed does not fit, and moving layers costs less than computing them again."""
    asked = question(model=HEAVY, memory=memory, choices=chosen)
    bench, times = Bench(asked), []
    for candidate in everything(asked):
        trier = Trier(bench, candidate, is_full=True)
        for layers in every_cut(trier.chain(), candidate.shape.stages):
            eased = [trier.fitting(layers, Ease(is_selective)) for is_selective in (False, True)]
            times += [trier.tried(layers, ease).seconds for ease in eased if ease is not None]
    fastest = min(one.trial.seconds for one in search(asked).proposals)
    assert fastest == pytest.approx(min(times))


def test_optimizer_state_is_whole_where_that_is_faster() -> None:
    chosen = Choices(schedule="interleaved-1f1b", experts=2, offload="none")  # type: ignore[arg-type]
    found = {
        name: search(question(model=MOE, choices=replace(chosen, optimizer=name)))
        for name in ("auto", "shared", "whole")
    }
    first = {name: one.proposals[0].trial for name, one in found.items()}
    assert first["auto"].order == first["whole"].order < first["shared"].order
    assert not first["auto"].candidate.division.layout.is_sharded
    assert first["whole"].peak > first["shared"].peak


def test_cuts_of_what_is_offloaded_are_improved_too() -> None:
    model = replace(HEAVY, layers=10, vocabulary=12_000)
    chosen = Choices(schedule="1f1b", pipeline=4, microbatch_size=1, recompute="none")  # type: ignore[arg-type]
    asked = question(model=model, memory=4.4e8, choices=chosen)
    device = replace(asked.cluster.device, host=Link(1e-6, 3e11))
    bench = Bench(replace(asked, cluster=replace(asked.cluster, device=device)))
    trier = Trier(bench, everything(asked)[0], is_full=True)
    uneven = trier.tried((2, 2, 2, 4), Ease(is_offloading=True))
    found = improved(bench, uneven)
    assert found is not None
    assert found.ease.is_offloading
    assert found.peak <= trier.capacity < trier.tried(found.layers, Ease()).peak
    assert found.seconds < 0.9 * uneven.seconds


@pytest.mark.parametrize("memory", [1.8e8, 2.4e8])
def test_nothing_is_left_out_that_fits(memory: float) -> None:
    asked = question(memory=memory, choices=FEW)
    bench = Bench(asked)
    fits = [trial.candidate for trial in brute(asked)]
    assert fits
    assert all(may_fit(bench, candidate) for candidate in fits)
    assert not all(may_fit(bench, candidate) for candidate in everything(asked))


def test_a_proposal_is_the_plan_that_is_simulated_in_full() -> None:
    for memory in (1e9, 2.4e8):
        found = search(question(model=HEAVY, memory=memory, choices=FEW))
        for one in found.proposals[:4]:
            whole = one.plan.prediction()
            assert one.predicted.seconds == pytest.approx(whole.seconds)
            assert one.predicted.memory == pytest.approx(whole.memory)
            assert one.predicted.bubble == pytest.approx(whole.bubble)
            assert one.predicted.mfu == pytest.approx(whole.mfu)
            assert one.predicted.tokens_per_second == pytest.approx(whole.tokens_per_second)


def test_a_long_step_is_extrapolated() -> None:
    asked = question(batch=64 * MODEL.sequence, choices=Choices(schedule="zbv", pipeline=2))  # type: ignore[arg-type]
    candidate = next(one for one in everything(asked) if one.division.microbatches == 32)
    bench = Bench(asked)
    brief, whole = (Trier(bench, candidate, is_full=is_full) for is_full in (False, True))
    assert (len(brief.lengths), len(whole.lengths)) == (2, 1)
    short, full = (one.tried(one.seed, Ease()) for one in (brief, whole))
    assert short.seconds == pytest.approx(full.seconds, rel=1e-3)
    assert short.held == pytest.approx(full.held)


def test_the_same_question_has_the_same_answer() -> None:
    def said(found: Found) -> list[object]:
        return [(one.trial, one.predicted, one.sensitivity) for one in found.proposals]

    asked = question(model=MOE, memory=4e8, choices=FEW)
    assert said(search(asked)) == said(search(asked))


def test_the_first_answer_comes_early_and_later_ones_are_better() -> None:
    asked = question(choices=FEW)
    every = [*searching(asked)]
    assert every[0].proposals
    assert every[0].tried < every[-1].tried
    times = [min(one.trial.seconds for one in found.proposals) for found in every]
    assert times[-1] <= times[0]


def test_an_effort_that_is_spent_leaves_an_answer() -> None:
    found = search(replace(question(), effort=1))
    assert found.proposals
    assert found.tried + found.hopeless < found.candidates


def test_choices_are_kept() -> None:
    chosen = Choices(schedule="zbv", tensor=2, recompute="selective", offload="none")  # type: ignore[arg-type]
    found = search(question(choices=chosen))
    assert found.proposals
    for one in found.proposals:
        assert one.trial.candidate.schedule.name == "zbv"
        assert one.trial.candidate.division.layout.tensor == 2
        assert one.trial.ease == Ease(is_selective=True)


def test_only_as_many_stages_are_recomputed_as_it_takes() -> None:
    """With memory for all devices but the fullest."""
    plain = Choices(schedule="1f1b", pipeline=4, microbatch_size=1, offload="none")  # type: ignore[arg-type]
    asked = question(choices=plain)
    trier = Trier(Bench(asked), everything(asked)[0])
    peaks = trier.held(trier.seed, Ease()).tolist()
    fullest = peaks.index(max(peaks))
    others = max(peak for device, peak in enumerate(peaks) if device != fullest)
    tight = question(memory=others, choices=plain)
    trier = Trier(Bench(tight), everything(tight)[0])
    assert trier.fitting(trier.seed, Ease()) == Ease(recomputed=frozenset({fullest}))


def test_what_would_be_needed_for_a_faster_plan() -> None:
    asked = question(memory=2.2e8, choices=Choices(schedule="1f1b,gpipe", offload="none"))  # type: ignore[arg-type]
    found = search(asked)
    first = found.proposals[0].trial.seconds
    for need in needs(found):
        assert need.seconds == pytest.approx((1 - need.saves) * first)
        assert f"{100 * need.saves:.1f}% less" in need.words
    more = [need for need in needs(found) if need.what == "memory"]
    assert more
    cluster = replace(asked.cluster, device=replace(asked.cluster.device, memory=more[0].amount))
    richer = search(replace(asked, cluster=cluster))
    assert richer.proposals[0].trial.seconds <= 1.01 * more[0].seconds


def test_where_nothing_fits_the_least_memory_would_do() -> None:
    asked = question(model=HEAVY, memory=3e7, choices=FEW)
    assert not search(asked).proposals
    found = shortage(asked)
    assert found.least is not None
    assert f"{found.least.peak / 2**20:.4g} MiB" in found.words
    enough = math.ceil(found.least.peak)
    assert search(question(model=HEAVY, memory=enough, choices=FEW)).proposals
    less = 0.99 * found.least.peak
    assert leanest(question(model=HEAVY, memory=less, choices=FEW)) is not None
    assert not brute(question(model=HEAVY, memory=less, choices=replace(FEW, offload="none")))
    if found.devices:
        more = question(model=HEAVY, memory=3e7, devices=found.devices, choices=FEW)
        assert search(more).proposals
