"""The table of rules, and the loop that asks them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice
from typing import NamedTuple, TypeAlias

from weft.cost import Cost
from weft.errors import InputError, ProgramError
from weft.ir.program import Program
from weft.lower import Groups
from weft.verify.context import Breach, Context, Limits
from weft.verify.exchanges import exchanged_alike
from weft.verify.form import well_formed
from weft.verify.limits import deep_enough, within_memory
from weft.verify.order import free_of_deadlock, ordered
from weft.verify.periods import in_step, periodic
from weft.verify.presence import complete, drained, offloaded, placed, produced
from weft.verify.report import MOST_FINDINGS, Finding, Report
from weft.verify.transfers import in_one_order
from weft.verify.versions import versioned
from weft.verify.wires import matched

REPEATS = 3  # bodies of a periodic program that are looked at

Check: TypeAlias = Callable[[Context], Iterator[Breach]]


class Rule(NamedTuple):
    """What a valid program obeys; asked only where all rules of lower levels hold."""

    level: int
    name: str
    says: str
    check: Check


RULES = (
    Rule(0, "well-formed", "every action can be read, on a lane that may hold it", well_formed),
    Rule(1, "complete", "each action of each microbatch stands exactly once", complete),
    Rule(1, "placed", "each action stands on the device that holds its stage", placed),
    Rule(1, "produced", "every value that is read is computed somewhere", produced),
    Rule(1, "drained", "nothing is left in flight at the end", drained),
    Rule(1, "wires", "a crossing value has one send and one receive, in one order", matched),
    Rule(1, "offload", "what goes to the host comes back, once, before it is used", offloaded),
    Rule(1, "versions", "the weights asked for exist, and all stages learn equally", versioned),
    Rule(1, "ordered", "nothing is read before it can exist", ordered),
    Rule(2, "periodic", "a run ends with what its body leaves, however long it is", periodic),
    Rule(2, "in step", "a step needs no data of the next one", in_step),
    Rule(3, "deadlock", "no devices wait for each other indefinitely", free_of_deadlock),
    Rule(3, "exchanges", "expert groups exchange tokens in one order", exchanged_alike),
    Rule(4, "one order", "no transfers on one wire wait for each other indefinitely", in_one_order),
    Rule(5, "channel depth", "blocking sends do not lock up at the depth given", deep_enough),
    Rule(5, "memory", "every device stays within its memory", within_memory),
)


def verify(
    program: Program,
    *,
    channel_depth: int | None = None,
    cost: Cost | None = None,
    versions: Sequence[int] | None = None,
    groups: Groups | None = None,
) -> Report:
    """The breaches of the rules; the report also knows how deep channels of blocking sends are.

    channel_depth  a depth at which blocking sends must run
    cost           its memory capacity must suffice
    versions       for each stage, the most weight versions a device may keep
    groups         transfers that each device posts together must not wait for each other, either
    """
    if versions is not None and len(versions) != program.stages:
        raise InputError(f"versions are claimed for {len(versions)} of {program.stages} stages")
    unrolled = program.unrolled(REPEATS) if program.period else program
    context = Context(unrolled, Limits(channel_depth, cost, versions, groups), program)
    broken = _broken(context)
    runs = all(rule.level == RULES[-1].level for rule, _ in broken)
    return Report(
        name=context.title,
        findings=tuple(Finding(rule.name, *breach[:3]) for rule, breach in broken),
        blocking=context.blocking if runs else None,
    )


def check(
    program: Program,
    *,
    channel_depth: int | None = None,
    cost: Cost | None = None,
    versions: Sequence[int] | None = None,
    groups: Groups | None = None,
) -> Report:
    """The report of a valid program; ProgramError for any other."""
    report = verify(
        program, channel_depth=channel_depth, cost=cost, versions=versions, groups=groups
    )
    if not report.is_valid:
        raise ProgramError(report.findings, report.shown)
    return report


def _broken(context: Context) -> list[tuple[Rule, Breach]]:
    """The breaches of the first level that has any, in lane order.

    What is not well-formed is set aside, so that what the rest breaks is found as well, unless
    there is too much of it.
    """
    form, *others = RULES
    malformed = [(form, breach) for breach in islice(form.check(context), MOST_FINDINGS)]
    if len(malformed) == MOST_FINDINGS:
        return malformed
    if malformed:
        context = context.without_rows([breach.row for _, breach in malformed])
    for _, rules in groupby(others, key=lambda rule: rule.level):
        found = [
            (rule, breach)
            for rule in rules
            for breach in islice(rule.check(context), MOST_FINDINGS)
        ]
        if found or malformed:
            return sorted(malformed + found, key=lambda pair: _place(pair[1]))
    return []


def _place(breach: Breach) -> tuple[int, bool, int]:
    return breach.device, breach.row is None, breach.row or 0
