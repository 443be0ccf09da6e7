"""Accounts: where the time of a step goes, and what limits it, in words.

compute                    products and what stands between them
recompute                  forwards that run again, for want of memory
communication in stages    tensor and expert parallelism, part of every stage's time
bubble                     devices wait for each other's values
exposed sends              how much sooner all would end if messages took no time
sums and updates           how much sooner if gradients were summed and weights updated at once
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from weft.cost import Link
from weft.draw.caption import percent
from weft.plan.bench import Bench
from weft.plan.trial import Trial, Trier

LEAST = 0.04  # of a step: what takes less limits nothing
_WORDS = {
    "recompute": "recompute, for want of memory",
    "bubble": "bubble",
    "sends": "exposed sends",
    "sums": "sums of gradients and updates",
}


class Account(NamedTuple):
    """Shares of the time of all devices; they add up to about 1."""

    compute: float
    recompute: float
    exchange: float
    bubble: float
    sends: float
    sums: float

    def limit(self, exchanged: str) -> str:
        """What takes most beside the computation; `exchanged` says what stages exchange."""
        words = {**_WORDS, "exchange": exchanged}
        name = max(words, key=lambda one: float(getattr(self, one)))
        share: float = getattr(self, name)
        return f"{words[name]} {percent(share)}" if share >= LEAST else "compute"


def account(bench: Bench, trial: Trial) -> Account:
    """Where the time of a trial goes."""
    trier, ease = Trier(bench, trial.candidate), replace(trial.ease, is_offloading=False)
    chain, layers = trier.chain(is_selective=ease.is_selective), trial.layers
    base = trier.tried(layers, ease)
    whole, devices = base.seconds, trial.candidate.shape.devices
    sends = whole - trier.tried(layers, ease, chain.instant()).seconds
    sums = whole - trier.tried(layers, ease, chain.without_updates()).seconds
    per_step = trial.candidate.division.microbatches
    again = float(chain.sums(layers).recompute[sorted(ease.recomputed)].sum())
    all_time = whole * devices
    recompute = per_step * again / all_time
    exchange = per_step * _exchanged(bench, trial) / all_time
    updates = sum(chain.blocks.times.update) * trial.candidate.pipes / all_time
    compute = base.busy / all_time - recompute - exchange - updates
    shares = [recompute, exchange, max(0.0, sends / whole), max(0.0, sums / whole)]
    bubble = max(0.0, 1.0 - compute - sum(shares))
    return Account(compute, recompute, exchange, bubble, shares[2], shares[3])


def _exchanged(bench: Bench, trial: Trial) -> float:
    """Seconds of a microbatch that its stages exchange values, all of them together."""
    question, layout = bench.question, trial.candidate.division.layout
    if question.model is None or layout.processors == 1:
        return 0.0
    near = replace(question.cluster.device, near=Link(), far=Link())
    other = replace(question, cluster=replace(question.cluster, device=near))
    is_selective = trial.ease.is_selective
    chains = [
        one.chain(trial.candidate.division, is_selective=is_selective)
        for one in (bench, Bench(other))
    ]
    slow, fast = (np.sum(chain.seconds) for chain in chains)
    return float(slow - fast)


def exchange_words(trial: Trial) -> str:
    """What stages exchange, in words."""
    layout = trial.candidate.division.layout
    if layout.experts > 1:
        return "expert communication" if layout.tensor == 1 else "tensor and expert communication"
    return "tensor communication"
