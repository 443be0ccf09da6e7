"""Report: what verification found, all of it, and a summary of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from weft.verify.channels import Blocking

SHOWN = 3  # findings of one rule that are reported in full
MOST_FINDINGS = 10_000  # of one rule that are kept


class Finding(NamedTuple):
    """One breach of one rule: where, and a message that says what, why and what to do."""

    rule: str
    device: int
    action: str
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, eq=False)
class Report:
    """The verdict on a program.

    findings  every breach, device by device; of one rule, at most MOST_FINDINGS
    blocking  the program with sends that block; None where it never runs
    """

    name: str
    findings: tuple[Finding, ...]
    blocking: Blocking | None = field(repr=False)

    @property
    def channel_depth(self) -> int | None:
        """Least depth at which blocking sends do not lock up; None where it never runs."""
        return self.blocking.least_depth if self.blocking else None

    @property
    def is_valid(self) -> bool:
        """Whether no rule is broken."""
        return not self.findings

    @property
    def shown(self) -> tuple[Finding, ...]:
        """The first findings of each rule, and how many more there are."""
        return tuple(_shown(self.findings, self.name))

    def __str__(self) -> str:
        if self.is_valid:
            return f"{self.name} is valid and runs with channels of depth {self.channel_depth}."
        return "\n".join(map(str, self.shown))


def _shown(findings: tuple[Finding, ...], name: str) -> Iterator[Finding]:
    seen: Counter[str] = Counter()
    for finding in findings:
        seen[finding.rule] += 1
        if seen[finding.rule] <= SHOWN:
            yield finding
    for rule, count in seen.items():
        if count > SHOWN:
            last = next(f for f in reversed(findings) if f.rule == rule)
            more = f"{count - SHOWN} or" if count >= MOST_FINDINGS else f"{count - SHOWN}"
            places = f"{more} more place{'s' if count > SHOWN + 1 else ''}"
            yield last._replace(message=f"{name}: the rule '{rule}' is broken in {places}.")
