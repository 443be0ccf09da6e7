"""The long run: this many cases, what came of them, and a minimal case for each way to fail.

python -m tests.runtime.habits.run --cases 20000 --seed 0
python -m tests.runtime.habits.run --cases 500 --transport gloo     # one process for each device
python -m tests.runtime.habits.run --cases 500 --transport peer --device cuda
python -m tests.runtime.habits.run --cases 500 --streams            # what a GPU could do too early
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch

from tests.runtime.habits.case import Case
from tests.runtime.habits.draws import drawn
from tests.runtime.habits.judge import Verdict, judge
from tests.runtime.habits.minimal import features, reduced
from tests.runtime.habits.ranks import CARRIERS, judge_in_ranks
from tests.runtime.habits.streams import judge_on_streams
from tests.runtime.habits.where import PLACES, run_on
from weft.schedules import REGISTRY

CHUNK = 100
TOGETHER = 8  # cases that the same ranks run, one after the other
MOST_RANKS = 4


class Judge(Protocol):
    """What comes of cases."""

    def __call__(self, cases: Sequence[Case]) -> list[Verdict]: ...


@dataclass
class Fault:
    """A way to fail: its minimal case, the case that first showed it, and how many did."""

    case: Case
    verdict: Verdict
    first: int
    count: int = 1

    def __str__(self) -> str:
        shown = ", ".join(sorted(features(self.case)))
        return f"[case {self.first}, {self.count} in all] {shown}\n{self.case!r}\n{self.verdict}"


@dataclass
class Findings:
    """What came of all cases so far."""

    judge: Judge
    is_reducing: bool = True
    kinds: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    voids: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)

    def add(self, cases: Sequence[Case]) -> None:
        for case, verdict in zip(cases, self.judge(cases), strict=True):
            self._add(case, verdict)

    def _add(self, case: Case, verdict: Verdict) -> None:
        number = sum(self.kinds.values())
        self.kinds[verdict.kind] += 1
        if verdict.kind == "refused":
            self.refusals[reason(verdict)] += 1
        if verdict.kind == "void":
            self.voids[reason(verdict)] += 1
        if verdict.kind == "wrong":
            self._fault(case, verdict, number)

    def _fault(self, case: Case, verdict: Verdict, number: int) -> None:
        mine = features(case)
        for known in self.faults:
            if kind_of(known.verdict) == kind_of(verdict) and features(known.case) <= mine:
                known.count += 1
                return
        print(f"\nwrong: {case!r}\n{verdict}", file=sys.stderr, flush=True)  # reducing takes long
        self.faults.append(self._least(case, verdict, number))
        print(f"\n{self.faults[-1]}", file=sys.stderr, flush=True)

    def _least(self, case: Case, verdict: Verdict, number: int) -> Fault:
        if not self.is_reducing:
            return Fault(case, verdict, number)
        smallest = reduced(case, lambda one: kind_of(self._alone(one)) == kind_of(verdict))
        again = self._alone(smallest)
        is_seldom = again.kind != "wrong"
        return Fault(smallest, verdict if is_seldom else again, number)

    def _alone(self, case: Case) -> Verdict:
        (verdict,) = self.judge([case])
        return verdict

    @property
    def progress(self) -> str:
        shown = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
        return f"{sum(self.kinds.values())} cases: {shown}; {len(self.faults)} ways to fail"

    def __str__(self) -> str:
        tried = sum(self.kinds.values()) - self.kinds["void"]
        share = self.kinds["refused"] / max(1, tried)
        lines = [self.progress, f"\nRefused: {share:.1%} of what plain torch trains"]
        lines += [f"{count:6} {why}" for why, count in self.refusals.most_common()]
        lines += ["\nVoid, as plain torch fails"]
        lines += [f"{count:6} {why}" for why, count in self.voids.most_common(12)]
        lines += ["\nWrong", *(f"\n{fault}" for fault in self.faults)]
        return "\n".join(lines)


def reason(verdict: Verdict) -> str:
    """Why, without the numbers and names of one case."""
    words = (verdict.reasons or ("",))[0].split()
    schedules = {schedule.name for schedule in REGISTRY}
    shown = ["(schedule)" if word in schedules else _general(word) for word in words]
    return re.sub(r"(… )+", "… ", " ".join(shown))[:120]


def _general(word: str) -> str:
    """A word that says the same in every case."""
    is_name = re.search(r"\d|[._]\w", word) or word.rstrip(";") in ("calls", "mean", "weight")
    return "…" + word[-1:] * (word[-1:] in ";,:") if is_name else word


def kind_of(verdict: Verdict) -> str:
    """Of a failure: against whom, or the error; without names and numbers."""
    if verdict.kind != "wrong":
        return verdict.kind
    first = verdict.reasons[0]
    for shown in ("not the reference's", "not plain torch's", "hooks of", "mode", "after"):
        if shown in first:
            return shown
    return reason(verdict) if "fails" in first else re.sub(r".*: ", "", first)


def one_by_one(cases: Sequence[Case]) -> list[Verdict]:
    """In this process."""
    return [judge(case) for case in cases]


def in_ranks(cases: Sequence[Case], transport: str, place: str) -> list[Verdict]:
    """In ranks, all at once if they get to the end, else one by one: who waits ends them all."""
    try:
        return judge_in_ranks(cases, transport, place)
    except AssertionError as error:
        if len(cases) > 1:
            return [verdict for case in cases for verdict in in_ranks([case], transport, place)]
        return [Verdict("wrong", (f"a rank fails: {error}",))]


def batches(numbers: range, *, are_in_ranks: bool) -> Iterator[list[Case]]:
    """Cases that are judged together: where each device is a process, as many of them."""
    waiting: dict[int, list[Case]] = defaultdict(list)
    for case in map(drawn, numbers):
        devices = case.plan.program.devices
        if not are_in_ranks:
            yield [case]
        elif 1 < devices <= MOST_RANKS:
            waiting[devices].append(case)
            if len(waiting[devices]) == TOGETHER:
                yield waiting.pop(devices)
    yield from waiting.values()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--transport", choices=CARRIERS, help="a process for each device")
    parser.add_argument("--streams", action="store_true", help="all lanes on watched streams")
    parser.add_argument("--seconds", type=float, default=math.inf, help="when to stop")
    parser.add_argument("--as-drawn", action="store_true", help="do not make failures small")
    parser.add_argument("--device", choices=PLACES, default="cpu")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    run_on(asked.device)
    warnings.simplefilter("ignore")
    transport, begin, shown = asked.transport, time.monotonic(), 0
    here: Judge = judge_on_streams if asked.streams else one_by_one
    ranks = partial(in_ranks, transport=transport, place=asked.device)
    findings = Findings(ranks if transport else here, not asked.as_drawn)
    first = asked.seed * asked.cases
    for cases in batches(range(first, first + asked.cases), are_in_ranks=bool(transport)):
        findings.add(cases)
        if time.monotonic() - begin > asked.seconds:
            break
        if (done := sum(findings.kinds.values()) // CHUNK) > shown:
            shown = done
            print(f"{time.monotonic() - begin:6.0f} s  {findings.progress}", file=sys.stderr)
    print(findings)


if __name__ == "__main__":
    main()
