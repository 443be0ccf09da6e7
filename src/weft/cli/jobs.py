"""Jobs: what the options of `weft train` ask for, as settings and as the file that repeats it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli.config import to_toml
from weft.cli.help import names_of
from weft.cli.names import program_names, variant_names
from weft.cli.options import Decorator, Sizes, count
from weft.cli.requests import DEVICES, is_file, program_of, shape_of
from weft.errors import InputError
from weft.ir.program import Program
from weft.schedules import REGISTRY
from weft.verify import check

if TYPE_CHECKING:
    from weft.train import Data, Settings


@dataclass(frozen=True, slots=True)
class Choice:
    """Which program was asked for."""

    schedule: str
    devices: int | None
    microbatches: int | None
    stages_per_device: int | None
    variant: str
    pipes: int
    round: int | None


@dataclass(frozen=True, slots=True)
class Job:
    """What was asked of the job."""

    steps: int
    seed: int
    microbatch_size: int
    learning_rate: float
    dropout: float
    layers: int
    hidden: int
    heads: int
    context: int
    data: Path | None
    token_type: str | None
    vocabulary: int | None
    switch_after: int
    predict: bool
    temper: int | None


MOST_RANKS = 256  # processes of one machine
MOST_NUMBERS = 2**31  # weights of a model, or numbers of one tensor


CHOICE = (
    click.option(
        "--schedule",
        default="1f1b",
        show_default=True,
        metavar="NAME",
        shell_complete=program_names,
        help="A schedule, or the file of a program.",
    ),
    count("-d", "--devices", metavar="D", help="Devices, a process for each.  [default: 4]"),
    count("-n", "--microbatches", metavar="N", help="Microbatches of a step.  [default: 2 D]"),
    count(
        *("-k", "--stages-per-device"),
        metavar="K",
        help="Stages on each device.  [default: 2 if NAME loops, else its own]",
    ),
    click.option("--variant", default="", shell_complete=variant_names, help="A variant of NAME."),
    count("--pipes", metavar="f", default=1, help="Pipes in each direction, for chimera."),
    count("--round", metavar="R", help="Microbatches of a round, for wpipe.  [default: D]"),
)


def _whole(name: str, default: int, help: str, **bounds: int) -> Decorator:
    return count(name, metavar="N", default=default, show_default=True, help=help, **bounds)


def _share(name: str, metavar: str, default: float, help: str, **bounds: Any) -> Decorator:
    """An option that takes a number from 0 to 1."""

    def checked(context: click.Context, parameter: click.Parameter, value: float) -> float:
        if isnan(value):
            raise click.BadParameter(f"{value} is not in the range 0 to 1.")
        return value

    return click.option(
        name,
        type=click.FloatRange(0, 1, **bounds),
        callback=checked,
        default=default,
        show_default=True,
        metavar=metavar,
        help=help,
    )


JOB = (
    _whole("--steps", 50, "Steps, an update each."),
    _whole("--seed", 0, "Of weights, batches and dropout.", least=0, most=2**63 - 1),
    _whole("--microbatch-size", 4, "Sequences of a microbatch."),
    _share("--learning-rate", "RATE", 3e-3, "At its highest.", min_open=True),
    _share("--dropout", "SHARE", 0.0, "The same on every schedule.", max_open=True),
    _whole("--layers", 8, "Blocks of the model; with embedding and head two more stages."),
    _whole("--hidden", 64, "Width of the model."),
    _whole("--heads", 4, "Of the attention."),
    _whole("--context", 64, "Tokens of a sequence; of a text, characters."),
    click.option(
        "--data",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="A text, or tokens in .bin or .npy.  [default: Weft's own text]",
    ),
    click.option(
        "--token-type",
        metavar="uint16|uint32",
        help="Of a .bin, little-endian.  [default: uint16]",
    ),
    count(
        "--vocabulary",
        metavar="V",
        help="Tokens there may be.  [default: the largest in the file + 1]",
    ),
    _whole("--switch-after", 0, "Synchronous steps before updates come late.", least=0),
    click.option(
        "--predict",
        is_flag=True,
        help="Forwards use the weights as they will be, if updates are all like the last.",
    ),
    count(
        "--temper",
        metavar="N",
        help="Steps in which a stage's learning rate grows from rate / staleness to the rate.",
    ),
)


SECTIONS = {
    "The program": names_of(Choice),
    "The training": ("steps", "seed", "microbatch_size", "learning_rate", "dropout"),
    "The model": ("layers", "hidden", "heads", "context"),
    "The data": ("data", "token_type", "vocabulary"),
    "Schedules that do not flush": ("switch_after", "predict", "temper"),
}


def need_torch(command: str) -> None:
    """Refuse a command that cannot do without PyTorch."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise InputError(f"weft {command} needs PyTorch: pip install 'weft[torch]'") from None


def settings_of(choice: Choice, job: Job) -> Settings:
    """The settings asked for; InputError where no machine has room for them."""
    from weft.train import Settings

    program, data = _program(choice), _data(job)
    _check_room(program, job, data)
    return Settings(
        program=program,
        data=data,
        steps=job.steps,
        seed=job.seed,
        microbatch_size=job.microbatch_size,
        learning_rate=job.learning_rate,
        dropout=job.dropout,
        layers=job.layers,
        hidden=job.hidden,
        heads=job.heads,
        context=job.context,
        switch_after=job.switch_after,
        is_predicting=job.predict,
        temper=job.temper,
    )


def on_ranks(choice: Choice) -> Choice:
    """The choice, by default with a device for each rank of this process group."""
    import torch.distributed as dist

    if choice.devices is not None or is_file(choice.schedule):
        return choice
    return replace(choice, devices=dist.get_world_size())


def as_config(choice: Choice, job: Job, settings: Settings) -> str:
    """A file that gives the same settings again, from any folder and with other defaults."""
    asked = asdict(_settled(choice)) | asdict(_found(job, settings.data))
    kept = {name: value for name, value in asked.items() if value is not None}
    paths = {name: str(value) for name, value in kept.items() if isinstance(value, Path)}
    return to_toml(kept | paths)


def _sizes(choice: Choice) -> Sizes:
    """The sizes asked for; where updates come late, enough of them for a program to repeat."""
    is_late = not is_file(choice.schedule) and any(
        schedule.is_asynchronous for schedule in REGISTRY if schedule.name == choice.schedule
    )
    return Sizes(
        choice.devices,
        choice.microbatches,
        choice.stages_per_device,
        variant=choice.variant,
        pipes=choice.pipes,
        round=choice.round,
        updates=2 * (choice.devices or DEVICES) + 2 if is_late else None,
    )


def _program(choice: Choice) -> Program:
    """The program asked for, proved before a process is started for it."""
    program = program_of(choice.schedule, _sizes(choice))
    check(program)
    return program


def _check_room(program: Program, job: Job, data: Data) -> None:
    """Refuse a job with tensors of a size that only a mistake asks for."""
    tokens = job.microbatch_size * job.context
    for found, most, words, remedy in (
        (program.devices, MOST_RANKS, "processes", "--devices"),
        (
            12 * job.layers * job.hidden**2 + 2 * data.vocabulary * job.hidden,
            MOST_NUMBERS,
            "weights",
            "--layers, --hidden or --vocabulary",
        ),
        (
            tokens * max(data.vocabulary, 4 * job.hidden, job.heads * job.context),
            MOST_NUMBERS,
            "numbers in one tensor of a microbatch",
            "--microbatch-size, --context, --hidden or --vocabulary",
        ),
    ):
        if found > most:
            raise InputError(f"{found:,} {words}; a job has at most {most:,}. Give less {remedy}")


def _data(job: Job) -> Data:
    from weft.train import data_of, own_text

    if job.data is not None:
        return data_of(job.data, token_type=job.token_type, vocabulary=job.vocabulary)
    for flag, value in (("--token-type", job.token_type), ("--vocabulary", job.vocabulary)):
        if value is not None:
            raise InputError(f"{flag} is for tokens; name their file with --data, or leave it out")
    return own_text()


def _settled(choice: Choice) -> Choice:
    """The choice, with what went by default; of a file, its place."""
    if is_file(choice.schedule):
        return replace(choice, schedule=str(Path(choice.schedule).absolute()))
    shape = shape_of(REGISTRY[choice.schedule], _sizes(choice))
    return replace(
        choice,
        devices=shape.devices,
        microbatches=shape.microbatches,
        stages_per_device=shape.stages_per_device,
    )


def _found(job: Job, data: Data) -> Job:
    """The job, with what was found out about its data."""
    from weft.train import TokenFile

    if job.data is not None:
        job = replace(job, data=job.data.absolute())
    if isinstance(data, TokenFile):
        job = replace(job, token_type=data.token_type, vocabulary=data.vocabulary)
    return job
