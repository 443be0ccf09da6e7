"""Options: bundles of values as flags; a command gets `sizes` and `prices`, not twenty flags.

What a flag takes and what it is by default stands with its bundle, in `weft.request`; here stand
its name, its help and what completes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeAlias

import click

from weft.cli.names import device_names, model_names, program_names, variant_names
from weft.cost.checks import quoted
from weft.request import Machine, Passes, Prices, Sizes
from weft.request.values import KEY, Amount, File, NameOrFraction, OneOf, Switch, Value, Whole

Command: TypeAlias = Callable[..., None]
Decorator: TypeAlias = Callable[[Command], Command]
Options: TypeAlias = Mapping[str, Decorator]


@dataclass(frozen=True, slots=True)
class Flag:
    """How a value is asked for; `name` where it is not that of its field.

    old  names that it once had, which still work
    """

    help: str
    metavar: str | None = None
    short: str = ""
    name: str = ""
    old: tuple[str, ...] = ()
    complete: Callable[..., Any] | None = None


class Option(click.Option):
    """The option of a value, which does not mention the names that it once had."""

    def __init__(self, *args: Any, value: Value, old: tuple[str, ...] = (), **more: Any) -> None:
        super().__init__(*args, callback=self._read, **more)
        self.value, self.old = value, old

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        if record is None:
            return None
        flags, words = record
        for name in self.old:
            flags = flags.replace(f", {name}", "")
        return flags, words

    def get_error_hint(self, ctx: click.Context | None) -> str:
        return " / ".join(f"'{name}'" for name in self.opts if name not in self.old)

    def _read(self, context: click.Context, parameter: click.Parameter, given: Any) -> Any:
        try:
            return None if given is None else self.value.read(given)
        except (TypeError, ValueError, OverflowError):
            message = f"{quoted(given)} is not {self.value.words}."
            raise click.BadParameter(message) from None


def flags(bundle: type, **given: Flag) -> Options:
    """An option for each of these fields of a bundle."""
    items = {item.name: item for item in fields(bundle)}
    return {
        name: option(items[name].metadata[KEY], name, flag, items[name].default)
        for name, flag in given.items()
    }


def option(value: Value, name: str, flag: Flag, default: Any = None) -> Decorator:
    """The option of a value, under its name with dashes unless the flag has another."""
    usual = f"--{name.removeprefix('has_').replace('_', '-')}"
    return click.option(
        *filter(None, (flag.short, flag.name or usual, *flag.old, name)),
        cls=Option,
        value=value,
        old=flag.old,
        default=default,
        show_default=default not in (None, "") and not isinstance(value, Switch),
        metavar=flag.metavar,
        help=flag.help,
        shell_complete=flag.complete,
        **_typed(value),
    )


def _typed(value: Value) -> dict[str, Any]:
    """How click reads what is typed; what it must be is left to the value."""
    match value:
        case Whole():
            return {"type": int}
        case Amount():
            return {"type": float}
        case OneOf():
            return {"type": click.Choice(value.names)}
        case Switch():
            return {"is_flag": True}
        case File():
            return {"type": click.Path(path_type=Path)}
        case _:
            return {"type": str}


SIZES = flags(
    Sizes,
    devices=Flag("Devices.  [default: 4]", "D", "-d"),
    microbatches=Flag("Microbatches per step.  [default: 2 D]", "N", "-n"),
    stages_per_device=Flag(
        "Stages on each device, for each pipe.  [default: 2 if NAME loops, else its own]", "K", "-k"
    ),
    variant=Flag("A variant of NAME; `weft list NAME` has them.", complete=variant_names),
    pipes=Flag("Pipes in each direction, for chimera.", "f"),
    updates=Flag("Updates of a run, for asynchronous schedules.  [default: 4]", "T"),
    round=Flag("Microbatches of a round, for wpipe.  [default: D]", "R"),
    graph=Flag(
        "Stages that branch, instead of -d: two-tower:T, inception or a JSON file; N is 8 then.",
        "GRAPH",
    ),
)

PRICES = flags(
    Prices,
    forward=Flag("Forward of a device's whole share.  [default: 1]", "SECONDS"),
    backward=Flag("Its backward, half for each gradient.  [default: 2]", "SECONDS"),
    input_grad=Flag("Its input gradient, instead of --backward.", "SECONDS"),
    weight_grad=Flag("Its weight gradient, instead of --backward.", "SECONDS"),
    pair=Flag("A forward and a backward that overlap.  [default: their sum]", "SECONDS"),
    latency=Flag("Latency of a message between devices.  [default: 0]", "SECONDS", old=("--lag",)),
    cost=Flag("Costs of every stage from a JSON file, instead of all these.", "FILE"),
)

MACHINE = flags(
    Machine,
    model=Flag(
        "A model: `weft list models` has names; or a config.json.",
        "NAME|FILE",
        complete=model_names,
    ),
    device=Flag(
        "What it runs on; `weft list devices` has names.", "NAME|FILE", complete=device_names
    ),
    microbatch_size=Flag("Sequences per microbatch.  [default: the model's]", "SEQUENCES"),
    sequence=Flag("Tokens per sequence.  [default: the model's]", "TOKENS"),
    layers=Flag("Layers of each stage.  [default: split evenly]", "L,L,..."),
    tensor_parallel=Flag(
        "Processors that share every matrix and the tokens of a stage.  [default: 1]", "T"
    ),
    expert_parallel=Flag(
        "Groups of these that share a stage, each with its own experts.  [default: 1]", "E"
    ),
    data_parallel=Flag("Replicas of all that, whose gradients are summed.  [default: 1]", "R"),
    shard_optimizer=Flag(
        "Whether replicas share the optimizer's state, or each has all of it.  [default: share]",
        name="--shard-optimizer/--no-shard-optimizer",
    ),
    state_bytes=Flag(
        "Bytes per parameter: weights, gradients, optimizer state.  [default: 2,4,12]", "W,G,O"
    ),
)

PASSES = flags(
    Passes,
    recompute=Flag(
        "Keep only the inputs of these stages, and run them again before their backward; or"
        " everywhere no output of norms and activation functions.",
        "all|selective|S,S,...",
    ),
    offload=Flag(
        "Move what stages save to the host until their backward needs it: what its link has time"
        " for, all of it, a fraction of the bytes (0.5, 1.0), or what there is time for of one"
        " stage or some.",
        "auto|all|none|FRACTION|stage:S|S,S,...",
    ),
    copy=Flag(
        "Time to move what a device's share saves, one way.  [default: a quarter of F + B]",
        "SECONDS",
    ),
    experts=Flag("Cut each stage into this many layers, their segments on two streams.", "LAYERS"),
    steps=Flag("This many steps in a row, each with its updates and the sums of replicas.", "T"),
)


def jittering(command: Command) -> Command:
    """Add --jitter; the command gets it as `jitter`, a fraction or "measured"."""
    flag = Flag(
        "Draw the duration of every action, with this standard deviation relative to its mean, or"
        " as much as a profile has found (with --cost): 0.05.",
        "FRACTION|measured",
    )
    return option(NameOrFraction(("measured",)), "jitter", flag)(command)


def named(command: Command) -> Command:
    """Add NAME: a schedule, or the file of a program."""
    return click.argument("name", shell_complete=program_names)(command)


def as_json(command: Command) -> Command:
    """Add --json; the command gets it as `is_json`."""
    return click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")(command)


def bundled(keyword: str, bundle: type, options: Options) -> Decorator:
    """Add options; the command gets them as one value, under the keyword."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def bundling(**given: Any) -> None:
            command(**{keyword: bundle(**{name: given.pop(name) for name in options})}, **given)

        decorated: Command = bundling
        for add in reversed([*options.values()]):
            decorated = add(decorated)
        return decorated

    return decorate
