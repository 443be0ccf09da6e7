"""Proposals: trials in full, with all that is said of them; each becomes a plan when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

from weft.cost import flops
from weft.plan.account import Account, account, exchange_words
from weft.plan.bench import Bench
from weft.plan.trial import Trial, Trier
from weft.request import Passes, Plan, Prediction

OFF = 0.05  # by as much times are wrong
SEEDS = 4
EQUAL = 0.005  # plans that differ by less are equally fast


@dataclass(frozen=True)
class Proposal:
    """A way to train a model.

    predicted    what a step comes to
    account      where its time goes
    sensitivity  by how much it is slower if times are 5 % off, at random, on average
    """

    bench: Bench
    trial: Trial
    predicted: Prediction
    account: Account | None = None
    sensitivity: float | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What is proposed once: a layout and a schedule."""
        return self.trial.candidate.key

    @property
    def order(self) -> tuple[float, float]:
        """Less is better."""
        return self.trial.order

    @cached_property
    def plan(self) -> Plan:
        """The plan, which is a file, a picture and a run."""
        trial, question = self.trial, self.bench.question
        candidate, ease = trial.candidate, trial.ease
        program = self.bench.ready(candidate, candidate.shape.microbatches).program
        layout = replace(candidate.division.layout, layers=trial.layers)
        passes = Passes(
            recompute=_stages(ease.recomputed, program.stages),
            offload="auto" if ease.is_offloading else None,
        )
        if question.model is None:
            chain = Trier(self.bench, candidate).chain()
            cost = chain.cost(program, trial.layers)
            bare = Plan(program=program, layout=layout, passes=passes, cost=cost)
        else:
            setting = self.bench.derivation(candidate.division, is_selective=ease.is_selective)
            bare = Plan(
                program=program,
                layout=layout,
                model=setting.model,
                device=setting.device,
                storage=setting.storage,
                passes=passes,
            )
        return replace(bare, predicted=self.predicted, source=candidate.source)


def _stages(recomputed: frozenset[int], stages: int) -> str | None:
    if len(recomputed) == stages:
        return "all"
    return ",".join(map(str, sorted(recomputed))) or None


def proposed(bench: Bench, trial: Trial) -> Proposal:
    """The proposal of a trial."""
    division, question = trial.candidate.division, bench.question
    tokens = mfu = None
    if question.model is not None:
        device, devices = question.cluster.device, question.cluster.devices
        tokens = question.batch / trial.seconds
        work = flops(question.model) / question.model.tokens
        mfu = tokens * work / (devices * device.peak)
    predicted = Prediction(
        seconds=trial.seconds,
        mfu=mfu,
        tokens_per_second=tokens,
        bubble=max(0.0, 1 - trial.busy / (division.devices * trial.seconds)),
        memory=trial.held,
        capacity=Trier(bench, trial.candidate).capacity,
    )
    return Proposal(bench, trial, predicted)


def explained(proposal: Proposal) -> Proposal:
    """The same with where its time goes, what limits it, and how it bears wrong times."""
    found = account(proposal.bench, proposal.trial)
    limit = found.limit(exchange_words(proposal.trial))
    return replace(
        proposal,
        predicted=replace(proposal.predicted, limit=limit),
        account=found,
        sensitivity=_sensitivity(proposal),
    )


def _sensitivity(proposal: Proposal) -> float:
    """How much slower a step is if each stage's times are off by up to 5 %, on average."""
    trial = proposal.trial
    trier, ease = Trier(proposal.bench, trial.candidate), trial.ease
    if ease.is_offloading:
        ease = replace(ease, is_offloading=False)
    chain, stages = trier.chain(is_selective=ease.is_selective), len(trial.layers)
    right = trier.tried(trial.layers, ease).seconds
    found = 0.0
    for seed in range(SEEDS):
        draw = Random(seed)
        factors = [1 + OFF * (2 * draw.random() - 1) for _ in range(stages)]
        wrong = chain.stretched(trial.layers, factors)
        found += trier.tried(trial.layers, ease, wrong).seconds / right - 1
    return found / SEEDS


def ranked(proposals: Sequence[Proposal]) -> tuple[Proposal, ...]:
    """The fastest first; of those that are equally fast, the one that bears wrong times best."""
    left = sorted(proposals, key=lambda one: one.order)
    found: list[Proposal] = []
    while left:
        most = left[0].trial.seconds * (1 + EQUAL)
        equal = [one for one in left if one.trial.seconds <= most]
        found += sorted(equal, key=lambda one: (round(one.sensitivity or 0.0, 3), one.order))
        left = left[len(equal) :]
    return tuple(found)
