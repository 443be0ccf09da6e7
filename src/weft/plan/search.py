"""The search: candidates tried, the likeliest first; the best of them timed in full and improved.

    scan      every candidate that may fit and may be faster, by its seed cut, briefly simulated
    refine    the best twenty in full; layers moved between their stages while that helps
    order     orders that no schedule has, synthesised for the best divisions of the cluster
    explain   where the time of each goes, and how it bears times that are off

Whoever asks gets what was found so far, again and better, and may stop at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import inf, log

from weft.errors import InputError, ProgramError
from weft.plan.bench import Bench
from weft.plan.bounds import claimed_seconds, estimated_seconds, least_bytes, least_seconds
from weft.plan.chain import Layers
from weft.plan.orders import placements, synthesised
from weft.plan.partition import Score, cuts
from weft.plan.proposal import Proposal, explained, proposed, ranked
from weft.plan.question import Question
from weft.plan.space import Candidate, Space
from weft.plan.trial import Ease, Trial, Trier, eases
from weft.request import Plan

ORDERED = 2  # divisions for which orders are synthesised
KEPT = 20  # trials that are timed in full
SCAN = 0.5  # of the effort
MOVES = 40  # cuts that are tried for one proposal
NEARLY = 1.04  # times as long by an estimate: as likely
MOST_OFFLOADED = 30_000  # actions of a trial with offloading, unless nothing else fits
SLACK = 1.02  # a bound that much above the worst that is kept is no hope


@dataclass(frozen=True)
class Found:
    """What a search has found so far.

    proposals  that fit, the fastest first
    wanted     trials that do not fit and would be faster than the first of them
    tried      candidates that were simulated, of all that there are
    hopeless   candidates that cannot fit, or cannot be faster than those that are kept
    actions    that were simulated
    is_done    whether the search has ended
    """

    proposals: tuple[Proposal, ...] = ()
    wanted: tuple[Trial, ...] = ()
    tried: int = 0
    hopeless: int = 0
    candidates: int = 0
    actions: int = 0
    is_done: bool = False

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of all proposals, in the same order."""
        return tuple(proposal.plan for proposal in self.proposals)


@dataclass
class _Board:
    """The best trial of every layout and schedule, and the proposals that were made of them."""

    bench: Bench
    trials: dict[tuple[object, ...], Trial] = field(default_factory=dict)
    wanted: list[Trial] = field(default_factory=list)
    proposals: dict[tuple[object, ...], Proposal] = field(default_factory=dict)
    counts: Found = field(default_factory=Found)

    @property
    def limit(self) -> float:
        """What a trial has to beat to be kept."""
        seconds = sorted(trial.seconds for trial in self.trials.values())
        return seconds[KEPT - 1] if len(seconds) >= KEPT else float("inf")

    @property
    def fastest(self) -> float:
        return min((trial.seconds for trial in self.trials.values()), default=float("inf"))

    @property
    def best(self) -> list[Trial]:
        """Those that are kept, the fastest first."""
        return sorted(self.trials.values(), key=lambda trial: trial.order)[:KEPT]

    def add(self, trial: Trial) -> bool:
        """Whether it is the fastest of all so far."""
        key = trial.candidate.key
        known = self.trials.get(key)
        is_first = all(trial.order < other.order for other in self.trials.values())
        if known is None or trial.order < known.order:
            self.trials[key] = trial
        return is_first

    def count(self, **more: int) -> None:
        changes = {name: getattr(self.counts, name) + number for name, number in more.items()}
        self.counts = replace(self.counts, **changes)

    def found(self, *, is_done: bool = False) -> Found:
        """What there is so far: proposals, or of what was tried briefly the best."""
        made = self.proposals.values() or [proposed(self.bench, one) for one in self.best]
        proposals = ranked(_distinct([*made]))
        fastest = proposals[0].trial.seconds if proposals else float("inf")
        wanted = [trial for trial in self.wanted if trial.seconds < fastest]
        return replace(
            self.counts,
            proposals=proposals,
            wanted=tuple(sorted(wanted, key=lambda trial: (trial.peak, trial.seconds))),
            actions=self.bench.actions,
            is_done=is_done,
        )


def search(question: Question, watch: Callable[[Found], None] = lambda found: None) -> Found:
    """The best plans; `watch` is called with what was found so far, whenever that is better."""
    found = Found()
    for found in searching(question):
        watch(found)
    return found


def searching(question: Question) -> Iterator[Found]:
    """What was found so far, ever better; the last is all that the effort allows."""
    board = _Board(Bench(question))
    for _ in _scanned(board):
        yield board.found()
    for trial in board.best:
        whole = Trier(board.bench, trial.candidate, is_full=True)
        full = trial if trial.is_full else whole.tried(trial.layers, trial.ease)
        if full.peak <= whole.capacity:
            board.proposals[trial.candidate.key] = proposed(board.bench, full)
    yield board.found()
    for trial in board.best:
        if board.bench.actions >= question.effort:
            break
        better = improved(board.bench, trial)
        if better is not None:
            known = board.proposals.get(trial.candidate.key)
            if known is None or better.order < known.order:
                board.proposals[trial.candidate.key] = proposed(board.bench, better)
                yield board.found()
    for trial in _ordered(board):
        board.proposals[trial.candidate.key] = proposed(board.bench, trial)
        yield board.found()
    for key, proposal in board.proposals.items():
        board.proposals[key] = explained(proposal)
    yield board.found(is_done=True)


def _ordered(board: _Board) -> Iterator[Trial]:
    """Orders that no schedule has, where they are faster than all that do on their division."""
    bench = board.bench
    if bench.question.choices.schedule:
        return
    best: dict[tuple[int, ...], Trial] = {}
    for one in sorted(board.proposals.values(), key=lambda one: one.order):
        best.setdefault(one.trial.candidate.division.key, one.trial)
    for known in [*best.values()][:ORDERED]:
        division, ease = known.candidate.division, replace(known.ease, recomputed=frozenset())
        capacity = Trier(bench, known.candidate).capacity
        if division.devices == 1 or ease.is_offloading or capacity == float("inf"):
            continue
        for placement in placements(division, Space(bench.question).blocks):
            found = synthesised(bench, division, placement, ease, capacity)
            if found is not None and found.peak <= capacity and found.order < known.order:
                known = found
                yield found


def _scanned(board: _Board) -> Iterator[Trial]:
    """Trials that are faster than all before; others are on the board."""
    bench = board.bench
    queue = _queue(board)
    for _, bound, candidate in queue:
        if bench.actions > SCAN * bench.question.effort:
            return
        if bound > SLACK * board.limit:
            board.count(hopeless=1)
            continue
        board.count(tried=1)
        for trial in tried(bench, candidate, board):
            if board.add(trial):
                yield trial


def _queue(board: _Board) -> list[tuple[float, float, Candidate]]:
    """Candidates that may fit, the likeliest to be fast first, with their bounds."""
    found: list[tuple[float, float, Candidate]] = []
    bench = board.bench
    space = Space(bench.question)
    for division in space.divisions:
        chain = bench.chain(division)
        least = least_seconds(chain, division)
        for candidate in space.on(division):
            board.count(candidates=1)
            if may_fit(bench, candidate):
                bound = max(least, claimed_seconds(chain, candidate))
                found.append((estimated_seconds(chain, candidate), bound, candidate))
            else:
                board.count(hopeless=1)
    return sorted(found, key=_turn)


def _turn(entry: tuple[float, float, Candidate]) -> tuple[float, int, float]:
    """Of candidates that are nearly as likely, those that are simulated soonest come first."""
    estimate, _, candidate = entry
    shape = candidate.shape
    level = round(log(estimate) / log(NEARLY)) if 0 < estimate < inf else estimate
    return level, shape.devices * shape.stages, estimate


def may_fit(bench: Bench, candidate: Candidate) -> bool:
    """Whether there may be memory enough, however it is relieved."""
    question, division = bench.question, candidate.division
    plain = bench.chain(division)
    if least_bytes(plain, candidate) <= plain.blocks.memory.capacity:
        return True
    may_be_selective = question.choices.recompute in ("auto", "selective")
    if question.model is None or not may_be_selective:
        return False
    leaner = bench.chain(division, is_selective=True)
    return least_bytes(leaner, candidate) <= leaner.blocks.memory.capacity


def tried(bench: Bench, candidate: Candidate, board: _Board) -> Iterator[Trial]:
    """What a candidate comes to: plain where it fits, else with what makes it fit."""
    trier = Trier(bench, candidate)
    choices = bench.question.choices
    may_be_plain = choices.recompute in ("auto", "none")
    try:
        layers = trier.seed
        plain = trier.tried(layers, Ease())
        if plain.seconds > SLACK * board.limit:
            return
        if plain.peak <= trier.capacity and may_be_plain:
            yield plain
            return
        if may_be_plain:
            board.wanted.append(plain)
        for ease in eases(trier, layers):
            is_long = trier.actions > MOST_OFFLOADED and bool(board.trials)
            if ease.is_offloading and (is_long or plain.seconds >= board.fastest):
                continue  # which takes long to find out
            trial = trier.tried(layers, ease)
            if trial.peak <= trier.capacity:
                yield trial
    except (InputError, ProgramError):
        return  # a variant that has no order for this shape


def improved(bench: Bench, trial: Trial) -> Trial | None:
    """The trial in full with layers moved between stages; None where no cut is better.

    What is offloaded changes with the cut, and takes long to find out: that is left as it is.
    """
    if trial.ease.is_offloading:
        return None
    trier, whole = (Trier(bench, trial.candidate, is_full=is_full) for is_full in (False, True))
    is_fixed = bench.question.choices.recompute != "auto"
    pipes = trier.ready(trier.lengths[0]).program.placement.pipes
    eased: dict[Layers, Trial] = {}

    def judge(layers: Layers) -> Score:
        ease: Ease | None = trial.ease
        if not is_fixed:
            ease = trier.fitting(layers, replace(trial.ease, recomputed=frozenset()))
        if ease is None:
            return float("inf"), 0.0
        found = eased[layers] = trier.tried(layers, ease)
        return float("inf") if found.peak > trier.capacity else found.order[0], found.peak

    chain = trier.chain(is_selective=trial.ease.is_selective)
    layers, score = cuts(chain, pipes, judge, trials=MOVES)
    if layers == trial.layers or score[0] == float("inf"):
        return None
    found = eased[layers]
    found = found if found.is_full else whole.tried(layers, found.ease)
    return found if found.peak <= whole.capacity else None


def _distinct(proposals: list[Proposal]) -> list[Proposal]:
    """Without variants that are the same as another for their shape."""
    found: dict[object, Proposal] = {}
    for one in sorted(proposals, key=lambda one: one.trial.candidate.shape.variant):
        found.setdefault((one.key[:-1], one.order), one)
    return [*found.values()]
