"""Options that commands share, bundled: a command gets `sizes` and `prices`, not twenty flags."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import wraps
from typing import Any, TypeAlias, TypeVar

import click

from weft.cli.names import device_names, model_names, program_names, variant_names
from weft.cost.checks import quoted
from weft.lower.experts import MOST_LAYERS

Command: TypeAlias = Callable[..., None]
Decorator: TypeAlias = Callable[[Command], Command]
Number = TypeVar("Number", int, float)

MOST_SECONDS = 1e100  # sums of these stay finite
MOST_COUNT = 10**9  # of anything that has no lower limit of its own


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
class Machine:
    """The model and the device that were asked for; None where nothing was."""

    model: str | None = None
    device: str | None = None
    microbatch_size: int | None = None
    sequence: int | None = None
    layers: tuple[int, ...] | None = None
    expert_parallel: int | None = None
    data_parallel: int | None = None
    state_bytes: tuple[float, ...] | None = None


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
    machine: Machine = field(default_factory=Machine)


@dataclass(frozen=True, slots=True)
class Passes:
    """What is added to the program before it is timed; None where nothing is."""

    recompute: str | None = None
    offload: str | None = None
    copy: float | None = None
    experts: int | None = None
    steps: int | None = None


def count(
    *names: str, metavar: str, help: str, least: int = 1, most: int = MOST_COUNT, **more: Any
) -> Decorator:
    """An option that takes a whole number from `least` to `most`."""

    def checked(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if value is not None and value < least:
            raise click.BadParameter(f"{quoted(value)} is less than {least}.")
        if value is not None and value > most:
            raise click.BadParameter(f"{quoted(value)} is more than {most:,}.")
        return value

    return click.option(*names, type=int, callback=checked, metavar=metavar, help=help, **more)


def amount(name: str, *, help: str, metavar: str = "SECONDS") -> Decorator:
    """An option that takes a finite number from 0 up."""

    def checked(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if value is not None and not 0 <= value <= MOST_SECONDS:
            raise click.BadParameter(f"{value} is not a finite number from 0 up.")
        return value

    return click.option(name, type=float, callback=checked, metavar=metavar, help=help)


def size(name: str, *, help: str) -> Decorator:
    """An option that takes a number from 0 up, of bytes or with a unit: 80GiB."""

    def checked(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        found = None if value is None else _SIZE.fullmatch(value)
        if value is not None and (found is None or float(found[1]) > MOST_SECONDS):
            units = ", ".join(_BYTES)
            raise click.BadParameter(f"{value[:40]!r} is no number of bytes, {units} from 0 up.")
        return float(found[1]) * _BYTES.get(found[2], 1.0) if found else None

    return click.option(name, callback=checked, metavar="BYTES", help=help)


_BYTES = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "KB": 1e3, "MB": 1e6, "GB": 1e9}
_SIZE = re.compile(rf"(\d+(?:\.\d*)?(?:e\+?\d+)?) ?({'|'.join(_BYTES)})?")


def listed(name: str, *, of: type[Number], metavar: str, help: str, example: str) -> Decorator:
    """An option that takes numbers from 0 up, with commas between them."""

    def checked(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if value is None:
            return None
        try:
            numbers = tuple(of(word) for word in value.split(","))
        except ValueError:
            numbers = ()
        if not numbers or not all(0 <= number <= MOST_SECONDS for number in numbers):
            raise click.BadParameter(f"{value[:40]!r} are no numbers like {example}.")
        return numbers

    return click.option(name, callback=checked, metavar=metavar, help=help)


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
        help="Stages on each device, for each pipe.  [default: 2 if NAME loops, else its own]",
    ),
    click.option(
        "--variant",
        default="",
        shell_complete=variant_names,
        help="A variant of NAME; `weft list NAME` has them.",
    ),
    count(
        "--pipes",
        metavar="f",
        default=1,
        help="Pipes in each direction, for chimera.  [default: 1]",
    ),
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

MACHINE = (
    click.option(
        "--model",
        metavar="NAME|FILE",
        shell_complete=model_names,
        help="A model; `weft list models` has names.",
    ),
    click.option(
        "--device",
        metavar="NAME|FILE",
        shell_complete=device_names,
        help="What it runs on; `weft list devices` has names.",
    ),
    count(
        "--microbatch-size", metavar="SEQUENCES", help="Of a microbatch.  [default: the model's]"
    ),
    count("--sequence", metavar="TOKENS", help="Of a sequence.  [default: the model's]"),
    listed(
        "--layers",
        of=int,
        metavar="L,L,...",
        example="3,4,4,3",
        help="Layers of each stage.  [default: split evenly]",
    ),
    count(
        "--expert-parallel",
        metavar="E",
        help="Devices that share a stage, each with its part of the experts.  [default: 1]",
    ),
    count(
        "--data-parallel",
        metavar="R",
        help="Copies of all that, over which optimizer state is sharded.  [default: 1]",
    ),
    listed(
        "--state-bytes",
        of=float,
        metavar="W,G,O",
        example="2,4,12",
        help="Of a parameter: weights, gradients, optimizer state.  [default: 2,4,12]",
    ),
)


PASSES = (
    click.option(
        "--recompute",
        metavar="all|S,S,...",
        help="Keep only the inputs of these stages; run them again before their backward.",
    ),
    click.option(
        "--offload",
        metavar="all|S,S,...",
        help="Move what these stages save to the host until their backward needs it.",
    ),
    amount(
        "--copy",
        help="To move what a device's share saves, one way.  [default: a quarter of F + B]",
    ),
    count(
        "--experts",
        metavar="LAYERS",
        most=MOST_LAYERS,
        help="Cut each stage into so many layers, their parts on two streams.",
    ),
    count("--steps", metavar="T", help="So many steps in a row, each with its updates."),
)


def named(command: Command) -> Command:
    """Add NAME: a schedule, or the file of a program."""
    return click.argument("name", shell_complete=program_names)(command)


def sized(command: Command) -> Command:
    """Add the options of a shape; the command gets them as `sizes`."""
    return bundled("sizes", Sizes, SIZES)(command)


def priced(command: Command) -> Command:
    """Add the options of a cost; the command gets them as `prices`, `prices.machine` included."""
    with_prices = bundled("prices", Prices, PRICES)(command)
    return bundled("machine", Machine, MACHINE)(with_prices)


def passed(command: Command) -> Command:
    """Add the options of lowering passes; the command gets them as `passes`."""
    return bundled("passes", Passes, PASSES)(command)


def as_json(command: Command) -> Command:
    """Add --json; the command gets it as `is_json`."""
    return click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")(command)


def bundled(keyword: str, bundle: type, options: Sequence[Decorator]) -> Decorator:
    """Add options; the command gets them as one value, under the keyword."""
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
