"""Needs: what would have to be there for a better plan, or for any.

more memory     the least with which something faster fits
faster links    what twice the bandwidth of each would save
anything        where nothing fits: the least memory of a device that would do, and how many
                devices as they are
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from weft.cost import Device
from weft.cost.units import BYTES, SECONDS, fitting
from weft.draw.caption import percent
from weft.errors import InputError, ProgramError
from weft.plan.bench import Bench
from weft.plan.bounds import least_bytes
from weft.plan.progress import Found
from weft.plan.proposal import Proposal
from weft.plan.question import Question
from weft.plan.room import roomier
from weft.plan.space import Candidate, Space
from weft.plan.trial import Ease, Trial, Trier
from weft.plan.undivided import undivided

SAVED = 0.01  # of a step: what saves less is not worth a word
DOUBLINGS = 6
_LINKS = {"near": "links within a node", "far": "links between nodes"}


@dataclass(frozen=True, slots=True)
class Need:
    """What would be needed, and what a step would take then.

    what     "memory", "near" or "far"
    amount   bytes of a device, or bytes per second of a link
    """

    what: str
    amount: float
    seconds: float
    saves: float
    words: str


def needs(found: Found) -> list[Need]:
    """What would make the best faster, what saves most first."""
    if not found.proposals:
        return []
    best = found.proposals[0]
    every = [*_memory(found, best), *_faster_links(best)]
    return sorted((need for need in every if need.saves >= SAVED), key=lambda need: -need.saves)


def _memory(found: Found, best: Proposal) -> Iterator[Need]:
    """The least memory with which something faster fits, and what the fastest of all needs."""
    wanted = [t for t in found.wanted if t.seconds <= (1 - SAVED) * best.trial.seconds]
    if not wanted:
        return
    fastest = min(wanted, key=lambda trial: trial.order)
    for trial in wanted[:1] if fastest is wanted[0] else (wanted[0], fastest):
        unit = fitting(trial.peak, BYTES)
        has = unit.amount(best.predicted.capacity)
        words = f"With {unit.amount(trial.peak)} of memory instead of {has}, {_way(trial)},"
        yield _need(best, "memory", trial.peak, trial.seconds, words)


def _faster_links(best: Proposal) -> Iterator[Need]:
    """What the same plan would take with one kind of link twice as fast."""
    question = best.bench.question
    if question.model is None:
        return
    trial = best.trial
    now = Trier(best.bench, trial.candidate).tried(trial.layers, _timed(trial.ease)).seconds
    for name, words in _LINKS.items():
        link = getattr(question.cluster.device, name)
        twice = replace(link, bandwidth=2 * link.bandwidth, latency=link.latency / 2)
        device: Device = replace(question.cluster.device, **{name: twice})
        other = Bench(replace(question, cluster=replace(question.cluster, device=device)))
        then = Trier(other, trial.candidate).tried(trial.layers, _timed(trial.ease)).seconds
        seconds = best.trial.seconds * then / now
        speed = f"{twice.bandwidth / 1e9:.4g} GB/s instead of {link.bandwidth / 1e9:.4g}"
        yield _need(best, name, twice.bandwidth, seconds, f"With {words} of {speed}, plan 1")


def _timed(ease: Ease) -> Ease:
    """What the quick clock knows."""
    return replace(ease, is_offloading=False)


def _need(best: Proposal, what: str, amount: float, seconds: float, words: str) -> Need:
    saves = 1 - seconds / best.trial.seconds
    unit = fitting(seconds, SECONDS)
    said = f"{words} would take {unit.amount(seconds)}, {percent(saves)} less"
    return Need(what, amount, seconds, saves, said)


def _way(trial: Trial) -> str:
    """A trial in words."""
    layout, candidate = trial.candidate.division.layout, trial.candidate
    sizes = [f"tensor {layout.tensor}", f"pipeline {candidate.shape.devices}"]
    sizes += [f"experts {layout.experts}"] if layout.experts > 1 else []
    sizes += [f"replicas {layout.replicas}"]
    is_whole = layout.copies > 1 and not layout.is_sharded
    words = ["whole optimizer state"] if is_whole else []
    words += ["selective recompute"] if trial.ease.is_selective else []
    if trial.ease.recomputed:
        every = len(trial.ease.recomputed) == candidate.shape.stages
        words.append("all stages recomputed" if every else "some stages recomputed")
    words += ["offload"] if trial.ease.is_offloading else []
    return f"{candidate.title}, {', '.join([*sizes, *words])}"


# where nothing fits


@dataclass(frozen=True, slots=True)
class Shortage:
    """What is missing where nothing fits.

    least    what needs the least memory of a device, None where no shape suits the batch at all
    devices  how many as they are would do, None where that is not known
    words    both of them, in words
    """

    least: Trial | None
    devices: int | None
    words: str


def shortage(question: Question) -> Shortage:
    """The least memory that would do, and how many devices as they are."""
    least = leanest(question)
    device = question.cluster.device
    if least is None:
        return Shortage(None, None, undivided(question))
    unit = fitting(device.memory, BYTES)
    words = (
        f"nothing fits into the {unit.amount(device.memory)} of each of"
        f" {question.cluster.devices:,} devices. The least that would do is"
        f" {unit.amount(least.peak)}: {_way(least)}"
    )
    more = next(_with_more_devices(question), None)
    if more is None:
        return Shortage(least, None, f"{words}. {_relaxed(question)}")
    devices, found = more
    return Shortage(
        least,
        devices,
        f"{words}. The cheapest way there: {devices:,} such devices, with {_way(found)}."
        f" {_relaxed(question)}".rstrip(),
    )


def _relaxed(question: Question) -> str:
    """What of the choices stands in the way."""
    asked = [name for name in ("recompute", "offload") if getattr(question.choices, name) != "auto"]
    flags = " and ".join(f"--{name}" for name in asked)
    return f"Without {flags} it may need less." if flags else ""


def _with_more_devices(question: Question) -> Iterator[tuple[int, Trial]]:
    """Clusters of twice the devices, four times ... on which something fits."""
    cluster = question.cluster
    for doubling in range(1, DOUBLINGS + 1):
        devices = cluster.devices << doubling
        larger = replace(question, cluster=replace(cluster, devices=devices))
        found = leanest(larger, enough=cluster.device.memory)
        if found is not None and found.peak <= cluster.device.memory:
            yield devices, found


def leanest(question: Question, *, enough: float = 0.0) -> Trial | None:
    """What needs the least memory of a device, however slow; None where nothing can be tried.

    The first that needs no more than `enough` will do, and nothing is tried that must need more.
    """
    bench = Bench(question)
    best: Trial | None = None
    for bound, candidate in _by_bound(bench):
        if best is not None and (bound >= best.peak or best.peak <= enough):
            break
        if enough and bound > enough:
            break
        for trial in _leanest(bench, candidate):
            if best is None or trial.peak < best.peak:
                best = trial
    return best


def _by_bound(bench: Bench) -> list[tuple[float, Candidate]]:
    """All candidates, the one that may need least first."""
    is_selective = bench.question.model is not None
    found = []
    space = Space(bench.question)
    for division in space.divisions:
        chain = bench.chain(division, is_selective=is_selective)
        found += [(least_bytes(chain, candidate), candidate) for candidate in space.on(division)]
    return sorted(found, key=lambda one: one[0])


def _leanest(bench: Bench, candidate: Candidate) -> Iterator[Trial]:
    """The candidate with as much relief as there is, within what was chosen."""
    choices, trier = bench.question.choices, Trier(bench, candidate)
    every = frozenset(range(candidate.shape.stages))
    kinds = {
        "none": [Ease()],
        "selective": [Ease(is_selective=True)],
        "full": [Ease(recomputed=every)],
    }
    eases = kinds.get(choices.recompute, [Ease(recomputed=every)])
    if choices.recompute == "auto" and bench.question.model is not None:
        eases = [*eases, Ease(is_selective=True, recomputed=every)]
    for ease in eases:
        try:
            layers = roomier(trier, trier.seed, ease)
            held = trier.held(layers, ease)
        except (InputError, ProgramError):
            continue
        yield Trial(candidate, layers, ease, 0.0, 0.0, tuple(held.tolist()), is_full=False)
