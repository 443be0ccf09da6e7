"""Options that commands share, bundled: a command gets `sizes` and `prices`, not fifteen flags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, TypeAlias

import click
from click.shell_completion import CompletionItem

Command: TypeAlias = Callable[..., None]
Decorator: TypeAlias = Callable[[Command], Command]

MOST_SECONDS = 1e100  # sums of these stay finite


@dataclass(frozen=True, slots=True)
class Sizes:
    """The shape that was asked for; None where the default depends on the schedule."""

    devices: int | None = None
    microbatches: int | None = None
    stages_per_device: int | None = None
    variant: str = ""
    pipes: int = 1
    updates: int | None = None
    round: int | None = None
    graph: str | None = None


@dataclass(frozen=True, slots=True)
class Prices:
    """The costs that were asked for; None where nothing was."""

    forward: float | None = None
    backward: float | None = None
    input_grad: float | None = None
    weight_grad: float | None = None
    pair: float | None = None
    lag: float | None = None
    cost: str | None = None


def count(*names: str, metavar: str, help: str, least: int = 1, **more: Any) -> Decorator:
    """An option that takes a whole number from `least` up."""

    def checked(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if value is not None and value < least:
            raise click.BadParameter(f"{value} is less than {least}.")
        return value

    return click.option(*names, type=int, callback=checked, metavar=metavar, help=help, **more)


def amount(name: str, *, help: str, metavar: str = "SECONDS") -> Decorator:
    """An option that takes a finite number from 0 up."""

    def checked(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if value is not None and not 0 <= value <= MOST_SECONDS:
            raise click.BadParameter(f"{value} is not a finite number from 0 up.")
        return value

    return click.option(name, type=float, callback=checked, metavar=metavar, help=help)


SIZES = (
    count("-d", "--devices", metavar="D", help="Devices.  [default: 4]"),
    count(
        *("-n", "--microbatches"),
        metavar="N",
        help="Microbatches of a step.  [default: 2 D, or 8 for a graph]",
    ),
    count(
        *("-k", "--stages-per-device"),
        metavar="K",
        help="Stages on each device, for each pipe.  [default: the least that NAME takes]",
    ),
    click.option("--variant", default="", help="A variant of NAME; `weft list NAME` has them."),
    count("--pipes", metavar="f", default=1, help="Pipes in each direction, for chimera."),
    count("--updates", metavar="T", help="Steps of a run that does not flush.  [default: 4]"),
    count("--round", metavar="R", help="Microbatches of a round, for wpipe.  [default: D]"),
    click.option(
        "--graph",
        metavar="GRAPH",
        help="Stages that branch, instead of -d: two-tower:T, inception or a JSON file.",
    ),
)

PRICES = (
    amount("--forward", help="Forward of a device's whole share.  [default: 1]"),
    amount("--backward", help="Its backward, half for each gradient.  [default: 2]"),
    amount("--input-grad", help="Its input gradient, instead of --backward."),
    amount("--weight-grad", help="Its weight gradient, instead of --backward."),
    amount("--pair", help="A forward and a backward that overlap.  [default: their sum]"),
    amount("--lag", help="What a value takes from device to device.  [default: 0]"),
    click.option(
        "--cost",
        type=click.Path(),
        metavar="FILE",
        help="Costs of every stage from a JSON file, instead of all these.",
    ),
)


def named(command: Command) -> Command:
    """Add NAME: a schedule, or the file of a program."""
    return click.argument("name", shell_complete=schedule_names)(command)


def sized(command: Command) -> Command:
    """Add the options of a shape; the command gets them as `sizes`."""
    return _bundled("sizes", Sizes, SIZES)(command)


def priced(command: Command) -> Command:
    """Add the options of a cost; the command gets them as `prices`."""
    return _bundled("prices", Prices, PRICES)(command)


def as_json(command: Command) -> Command:
    """Add --json; the command gets it as `is_json`."""
    return click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")(command)


def _bundled(keyword: str, bundle: type, options: Sequence[Decorator]) -> Decorator:
    names = [item.name for item in fields(bundle)]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def bundling(**given: Any) -> None:
            command(**{keyword: bundle(**{name: given.pop(name) for name in names})}, **given)

        decorated: Command = bundling
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


def schedule_names(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Completions for the shell."""
    from weft.schedules import REGISTRY

    return [
        CompletionItem(schedule.name, help=schedule.summary)
        for schedule in REGISTRY
        if schedule.name.startswith(incomplete)
    ]
