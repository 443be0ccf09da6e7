"""`weft verify`: what was proved of a program, or every rule that it breaks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import click

from weft.cli.asked import asked_as_is
from weft.cli.help import Sectioned
from weft.cli.options import Flag, as_json, bundled, flags, option
from weft.cli.output import facts, show, show_json
from weft.cli.progress import working
from weft.cli.status import BROKEN_RULE
from weft.cost import Cost
from weft.draw.caption import title
from weft.ir.program import Program
from weft.request import Overrides, Request
from weft.request.values import Whole
from weft.verify import RULES, Report, verify

MEMORY = flags(
    Overrides,
    capacity=Flag(
        "Memory of a device, like 80GiB; with unit costs, in shares of a device.",
        "BYTES",
        name="--memory",
    ),
)


@click.command("verify", cls=Sectioned)
@asked_as_is
@option(
    Whole(least=0),
    "channel_depth",
    Flag("Prove that blocking sends run at this channel depth.", "K"),
)
@bundled("overrides", Overrides, MEMORY)
@as_json
@click.pass_context
def command(
    context: click.Context,
    request: Request,
    channel_depth: int | None,
    overrides: Overrides,
    is_json: bool,
) -> None:
    """Prove the program in the file NAME, or that of the schedule NAME, correct.

    \b
      $ weft verify 1f1b -d 4 -n 8
      1f1b: 4 devices, 8 microbatches, 64 actions: valid
      complete       each action of each microbatch stands exactly once
      ordered        nothing is read before it can exist
      least depth    1, of channels whose sends block

    \b
      $ weft export 1f1b -d 4 -n 8 -o program.txt
      $ weft verify program.txt --channel-depth 2
      $ weft verify 1f1b -d 8 -n 24 --model gpt-6.2b --device a100
      $ weft verify 1f1b -d 8 -n 24 --model gpt-6.2b --device a100 --memory 20GiB

    Reads text, JSON and torch's CSV. Prints what was proved (exit status 0), or every rule that
    is broken: where, why, and what to do (1). What cannot be read is refused with its line (2).

    A device may hold as much as --memory says, or else the capacity in the file of --cost, or
    the memory of --device. Other commands only warn of what does not fit.
    """
    with working("proving"):
        program = _asked(request)
        cost = replace(request.costs, overrides=overrides).of(program)
        report = verify(program, channel_depth=channel_depth, cost=cost)
    if is_json:
        show_json(_described(program, report))
    elif report.is_valid:
        open_rules = _open(cost, channel_depth)
        heading = f"{title(program)}, {len(program)} actions: valid"
        show(heading, "", facts(_proved(report, open_rules)))
    else:
        print("\n".join(map(str, report.findings)))
    context.exit(0 if report.is_valid else BROKEN_RULE)


def _asked(request: Request) -> Program:
    """The program; of a plan with what its passes add, without which it may not fit."""
    if request.passes.asked and verify(request.program).is_valid:
        return request.with_passes()
    return request.program


def _open(cost: Cost, channel_depth: int | None) -> dict[str, str]:
    """What is not proved for want of a limit, by the name of its rule."""
    limits = {
        "channel depth": ("--channel-depth", channel_depth is None),
        "memory": ("--memory or --device", math.isinf(cost.memory.capacity)),
    }
    return {
        rule: f"no limit; {flag} gives one" for rule, (flag, is_open) in limits.items() if is_open
    }


def _proved(report: Report, open_rules: Mapping[str, str]) -> list[tuple[str, str]]:
    depth = ("least depth", f"{report.channel_depth}, of channels whose sends block")
    return [*((rule.name, open_rules.get(rule.name, rule.says)) for rule in RULES), depth]


def _described(program: Program, report: Report) -> dict[str, object]:
    return {
        "name": program.name,
        "actions": len(program),
        "verified": report.is_valid,
        "channel_depth": report.channel_depth,
        "rules": [rule.name for rule in RULES],
        "findings": [finding._asdict() for finding in report.findings],
    }
