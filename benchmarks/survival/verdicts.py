"""Verdicts: whether all ranks of a case have ended in time, named the cause, and left nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cases import Case
from strikes import REASON

RANK = re.compile(r"^\[rank\d+\]: ")  # torch's, in front of every line of a traceback
LATE = r"nothing came within the deadline of .*device \d+ was waiting for "
UNSAVED = r"(\S+ was not saved: )?"  # what comes before the cause where a save was written
STORE = r"the store of the process group does not answer"


class Rank(NamedTuple):
    """How a rank has ended: seconds until its error, and until it was gone; its last words."""

    raised: float | None
    seconds: float | None
    code: int | None
    said: str


class Outcome(NamedTuple):
    """What became of a case.

    struck   the moment, if it was reached
    seconds  that ranks had from then on
    left     what is left of it, in words
    lost     why no save can be read, where one was complete
    stacks   of ranks that did not end
    """

    case: Case
    struck: str
    ranks: Sequence[Rank]
    seconds: float
    left: Sequence[str]
    lost: str = ""
    stacks: str = ""

    @property
    def others(self) -> list[Rank]:
        """Those that have to name the cause."""
        victim, kind = self.case.victim, self.case.kind
        return [one for number, one in enumerate(self.ranks) if number != victim or kind == "cut"]

    @property
    def is_in_time(self) -> bool:
        """All ranks, also one that goes on after it was stopped."""
        ends = [rank.seconds for rank in self.ranks]
        return all(end is not None and end <= self.seconds for end in ends)

    @property
    def is_named(self) -> bool:
        """Whether all say what it was, and one at least who; one may wait for one that waits."""
        others = self.others
        if self.case.phase == "exit" and all(one.code == 0 for one in others):
            return True  # nobody waits for a rank after the last step
        needed = [one for one in others if self.case.phase != "exit" or one.code != 0]
        return all(is_cause(self, one.said) for one in needed) and any(
            is_about(self.case, one.said) for one in needed
        )

    @property
    def is_good(self) -> bool:
        is_clean = not self.left and not self.lost
        return bool(self.struck) and self.is_in_time and self.is_named and is_clean

    @property
    def slowest(self) -> tuple[float, float]:
        """Seconds until the last error of the others, and until the last of them was gone."""
        raised = max((one.raised or 0.0 for one in self.others), default=0.0)
        return raised, max((one.seconds or 0.0 for one in self.others), default=0.0)


def is_cause(outcome: Outcome, said: str) -> bool:
    """Whether an error of Weft says what happened."""
    case, victim = outcome.case, f"device {outcome.case.victim}"
    gone = [rf"{victim} (died|has left)"]
    failed = [rf"{victim} failed.*{REASON}" if case.kind == "raise" else rf"{victim} failed.*Exit"]
    silent = [LATE]
    if case.victim == 0 and case.transport == "hosts":
        silent.append(STORE)  # which rank 0 holds there
    what = {
        "kill": gone,
        "end": gone,
        "stop": silent,
        "cut": [*silent, STORE, r"\S+ cannot be reached"],
        "raise": [*failed, *gone],
        "exit": [*failed, *gone],
    }[case.kind]
    if is_before_meeting(outcome):
        what = [*what, *silent]
    return any(re.match(rf"weft\.errors\.\w+: {UNSAVED}{one}", said) for one in what)


def is_before_meeting(outcome: Outcome) -> bool:
    """Whether the rank had not come to where others could notice its end."""
    is_early = outcome.case.phase in ("start-up", "connecting")
    return is_early and "the end of" not in outcome.struck


def is_about(case: Case, said: str) -> bool:
    """Whether an error names the rank; where a link is cut, any of the other host."""
    if case.kind == "cut" or (case.victim == 0 and re.search(STORE, said)):
        return True
    return re.search(rf"devices? (\d+,? (and )?)*{case.victim}\b", said) is not None


def said(file: Path) -> str:
    """The error that a script has ended with, or its last words."""
    lines = [RANK.sub("", line) for line in file.read_text(errors="replace").splitlines()]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exit|Disagreement)\b", line)]
    words = [line for line in lines if line and not line.startswith("[W")]  # no warnings of torch
    return (errors or words or [""])[-1]


def row(outcome: Outcome) -> dict[str, Any]:
    """An outcome as JSON, with what was judged."""
    return {
        **outcome.case._asdict(),
        "struck": outcome.struck,
        "is_in_time": outcome.is_in_time,
        "is_named": outcome.is_named,
        "left": [*outcome.left],
        "lost": outcome.lost,
        "slowest": outcome.slowest,
        "ranks": [rank._asdict() for rank in outcome.ranks],
        "stacks": outcome.stacks,
    }
