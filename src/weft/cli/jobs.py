"""Jobs: what the options of `weft train` ask for, as settings and as the file that repeats it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.cli.by_plan import by_plan, decided
from weft.cli.config import configured, to_toml
from weft.cli.names import model_names, program_names
from weft.cli.options import SIZES, Command, Flag, bundled, flags, option
from weft.errors import InputError
from weft.lower import replicated
from weft.request import (
    DEVICES,
    PlanFile,
    Request,
    Saving,
    Sizes,
    Source,
    Training,
    is_file,
    is_model_file,
    model_called,
    read_plan,
)
from weft.request.values import COUNT, FILE, TEXT, refuse
from weft.schedules import REGISTRY
from weft.verify import check

if TYPE_CHECKING:
    from weft.train import Data, Settings

MOST_RANKS = 256  # processes of one machine
MOST_NUMBERS = 2**31  # weights of a model, or numbers of one tensor

NAMED = Flag("A schedule, or the file of a program.", "NAME", complete=program_names)
SCHEDULE = {"schedule": option(TEXT, "schedule", NAMED, "1f1b")}
COPIES = Flag("Replicas of the whole pipeline, each on D devices and with N microbatches.", "R")
HOLDERS = Flag("Ranks that hold some of the experts each, every one with N microbatches.", "E")
PLANNED = Flag(
    "Train as a plan of `weft plan` has it: its program, cut, layout, passes and sizes of the model"
    " in place of the options for these.",
    "FILE",
)
PLAN = {"plan": option(FILE, "plan", PLANNED)}
REPLICAS = {
    "replicas": option(COUNT, "replicas", COPIES, 1),
    "expert_ranks": option(COUNT, "expert_ranks", HOLDERS, 1),
}
SHAPE = {name: add for name, add in SIZES.items() if name not in ("updates", "graph")}
TRAINING = flags(
    Training,
    steps=Flag("Training steps, an update each.", "N"),
    seed=Flag("Seed of weights, batches and dropout.", "N"),
    microbatch_size=Flag("Sequences per microbatch.", "N"),
    learning_rate=Flag("Peak learning rate.", "RATE"),
    dropout=Flag("Dropout rate; the same values are dropped on every schedule.", "RATE"),
    model=Flag(
        "Sizes of a preset (`weft list models`), a GPT's or a mixture of experts', or a config.json"
        " of Hugging Face, whose model is trained.  [default: a small GPT]",
        "NAME|FILE",
        complete=model_names,
    ),
    layers=Flag("Transformer blocks; embedding and head are two more stages at most.", "N"),
    hidden=Flag("Width of the model.", "N"),
    heads=Flag("Attention heads.", "N"),
    context=Flag("Tokens per sequence; characters, for a text.", "N"),
    precision=Flag(
        "Compute in bf16 or fp16 with float32 weights, or let torch cast.  [default: float32]"
    ),
    compress=Flag(
        "Send values and gradients between devices in fewer bits; fp16 and fp8 are scaled."
        "  [default: as they are]"
    ),
    experts=Flag(
        "Cut layers of experts into attention, dispatch, experts and combine, each on a lane of"
        " its own, also in schedules without pairs."
    ),
    offload=Flag(
        "Move what forwards keep to the host until its backward: what there is time for, all,"
        " nothing, or a fraction of the bytes (0.5, 1.0).",
        "auto|all|none|FRACTION",
    ),
    shard_optimizer=Flag(
        "Let each replica keep the optimizer state of its share of the weights, and update that:"
        " the same losses."
    ),
    reduce=Flag(
        "Sum gradients of replicas in a fixed order, or by torch's library, which rounds in an"
        " order of its own."
    ),
    switch_after=Flag("Synchronous steps before asynchronous updates begin.", "N"),
    predict=Flag("Use predicted weights in forwards: the current ones, plus recent updates."),
    temper=Flag(
        "Steps over which a stage's learning rate grows from rate / staleness to the rate.", "N"
    ),
    shuffle=Flag(
        "Take every sequence once in each epoch, in an order drawn by the seed, rather than"
        " sequences from anywhere."
    ),
    accelerator=Flag("What ranks compute on; auto: GPUs if there is one for each rank, else CPUs."),
    share_gpus=Flag(
        "Let several ranks have one GPU, each an equal share by MPS, which should be running:"
        " nvidia-cuda-mps-control -d."
    ),
)
SOURCE = flags(
    Source,
    data=Flag(
        "A text, tokens in .bin or .npy, or a folder saved by Hugging Face's datasets."
        "  [default: Weft's own text]",
        "PATH",
    ),
    token_type=Flag("Type of the tokens in a .bin.  [default: uint16]", "uint16|uint32"),
    vocabulary=Flag("Size of the vocabulary.  [default: the largest token in the file + 1]", "V"),
    column=Flag("Column of a saved dataset.  [default: input_ids, or else text]", "NAME"),
)


SAVING = flags(
    Saving,
    save_every=Flag("Save every N steps, and at the end.", "N"),
    keep=Flag("Keep the M newest saves.  [default: all]", "M"),
    stop_after=Flag("End early after step N, as if interrupted; learning rates stay.", "N"),
    resume=Flag(
        "Go on from the newest save in --out, with the same settings; begin where there is none."
    ),
    reshape=Flag("With --resume: let the run go on by another program, or another accelerator."),
)

SECTIONS = {
    "The program": [*SCHEDULE, *PLAN, *SHAPE, *REPLICAS, "shard_optimizer", "reduce"],
    "The training": (
        "steps",
        "seed",
        "microbatch_size",
        "learning_rate",
        "dropout",
        "precision",
        "compress",
        "experts",
        "offload",
    ),
    "The model": ("model", "layers", "hidden", "heads", "context"),
    "The data": ("data", "column", "token_type", "vocabulary", "shuffle"),
    "The machine": ("accelerator", "share_gpus"),
    "Asynchronous schedules": ("switch_after", "predict", "temper"),
    "Saves": ("save_every", "keep", "stop_after", "resume", "reshape"),
}


def need_torch(command: str) -> None:
    """Refuse a command that cannot do without PyTorch."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise InputError(f"weft {command} needs PyTorch: pip install 'weft[torch]'") from None


class Job(NamedTuple):
    """What was asked for: a program, how it trains, and on what."""

    schedule: str
    sizes: Sizes
    training: Training
    source: Source
    replicas: int = 1
    expert_ranks: int = 1
    plan: Path | None = None

    @property
    def copies(self) -> int:
        """Pipelines that train together, each on D devices."""
        return self.replicas * self.expert_ranks


def job_options(command: Command) -> Command:
    """Add the options of a job, and --config for a file of them; the command gets a `job`."""

    @wraps(command)
    def decorated(**given: Any) -> None:
        job = Job(**{name: given.pop(name) for name in Job._fields})
        command(job=job, **given)

    for_source = bundled("source", Source, SOURCE)(decorated)
    for_training = bundled("training", Training, TRAINING)(for_source)
    for_shape = bundled("sizes", Sizes, SHAPE)(for_training)
    for_copies = REPLICAS["replicas"](REPLICAS["expert_ranks"](for_shape))
    for_program = SCHEDULE["schedule"](PLAN["plan"](for_copies))
    return configured(SCHEDULE, PLAN, REPLICAS, SHAPE, TRAINING, SOURCE)(for_program)


def saving_options(command: Command) -> Command:
    """Add the options of saves; the command gets them as `saving`."""
    return bundled("saving", Saving, SAVING)(command)


def settings_of(job: Job) -> Settings:
    """The settings asked for; InputError where no machine has room for them."""
    from weft.runtime.planned import program_of
    from weft.train import Settings

    plan = None if job.plan is None else read_plan(job.plan)
    job = job if plan is None else by_plan(job, plan)
    program = _request(job).program if plan is None else program_of(plan)
    program = replicated(program, job.copies, expert_ranks=job.expert_ranks)
    check(program)  # before a process is started for it
    training = _sized(job.training)
    planned = None if plan is None else PlanFile(str(job.plan), plan)
    settings = Settings(
        program=program, data=_data(job.source), planned=planned, **asdict(training)
    )
    _check_room(settings)
    return settings.on_this_machine()


def _sized(asked: Training) -> Training:
    """The same with the sizes of the model that is named."""
    if asked.model is None:
        return asked
    model = model_called(asked.model)
    name = str(Path(asked.model).absolute()) if is_model_file(asked.model) else asked.model
    sizes = {size: getattr(model, size) for size in ("layers", "hidden", "heads")}
    others = [size for size, own in sizes.items() if asked.asked.get(size, own) != own]
    refuse(f"{asked.model} has sizes of its own", others)
    return replace(asked, model=name, **sizes)


def on_ranks(job: Job) -> Job:
    """The job, by default with a device for each rank of this process group."""
    import torch.distributed as dist

    if job.sizes.devices is not None or job.plan is not None or is_file(job.schedule):
        return job
    devices, rest = divmod(dist.get_world_size(), job.copies)
    if rest or not devices:
        raise InputError(
            f"{dist.get_world_size()} ranks make no {job.copies} replicas of equal size; start"
            f" R x E x D of them"
        )
    return job._replace(sizes=replace(job.sizes, devices=devices))


def as_config(job: Job, settings: Settings) -> str:
    """A file that gives the same settings again, from any folder and with other defaults."""
    return to_toml(dict(_kept(job, settings)))


def _kept(job: Job, settings: Settings) -> Iterator[tuple[str, str | int | float]]:
    """What was asked for, what went by default and what was found; of files, their places."""
    if job.plan is not None:
        yield from _kept_of_plan(job, settings)
        return
    request = _request(job)
    sizes, source = asdict(job.sizes), asdict(_found(job.source, settings.data))
    if request.is_file:
        yield "schedule", str(Path(job.schedule).absolute())
    else:
        yield "schedule", job.schedule
        names = ("devices", "microbatches", "stages_per_device")
        sizes |= {name: getattr(request.shape, name) for name in names}
    yield "replicas", job.replicas
    yield "expert_ranks", job.expert_ranks
    training = {item.name: getattr(settings, item.name) for item in fields(Training)}
    for name, value in (sizes | training | source).items():
        if value is not None:
            yield name, str(value) if isinstance(value, Path) else value


def _kept_of_plan(job: Job, settings: Settings) -> Iterator[tuple[str, str | int | float]]:
    """The same where a plan decides about the program and the sizes."""
    yield "plan", str(Path(str(job.plan)).absolute())
    assert settings.planned is not None
    known = decided(settings.planned.plan)
    kept = {item.name: getattr(settings, item.name) for item in fields(Training)}
    source = asdict(_found(job.source, settings.data))
    for name, value in (kept | source).items():
        if value is not None and name not in known:
            yield name, str(value) if isinstance(value, Path) else value


def _request(job: Job) -> Request:
    """The program asked for; of an asynchronous one, enough updates for it to repeat."""
    is_asynchronous = any(
        schedule.is_asynchronous for schedule in REGISTRY if schedule.name == job.schedule
    )
    updates = 2 * (job.sizes.devices or DEVICES) + 2 if is_asynchronous else None
    return Request(job.schedule, replace(job.sizes, updates=updates))


def _check_room(asked: Settings) -> None:
    """Refuse a job with tensors of a size that only a mistake asks for."""
    data, tokens, mixture = asked.data, asked.microbatch_size * asked.context, asked.mixture
    experts = 3 * mixture.experts * mixture.expert_ffn if mixture else 0
    for found, most, words, remedy in (
        (asked.ranks, MOST_RANKS, "processes", "Reduce --devices"),
        (
            asked.layers * asked.hidden * (12 * asked.hidden + experts)
            + 2 * data.vocabulary * asked.hidden,
            MOST_NUMBERS,
            "weights",
            "Reduce --layers, --hidden or --vocabulary"
            if asked.model is None
            else f"{asked.model} is too large for this; `weft list models` has smaller ones",
        ),
        (
            tokens * max(data.vocabulary, 4 * asked.hidden, asked.heads * asked.context),
            MOST_NUMBERS,
            "numbers in one tensor of a microbatch",
            "Reduce --microbatch-size, --context, --hidden or --vocabulary",
        ),
    ):
        if found > most:
            raise InputError(f"{found:,} {words}; a job has at most {most:,}. {remedy}")


def _data(source: Source) -> Data:
    from weft.train import data_of, own_text

    if source.data is not None:
        return data_of(
            source.data,
            token_type=source.token_type,
            vocabulary=source.vocabulary,
            column=source.column,
        )
    for flag, value, what in (
        ("--token-type", source.token_type, "tokens"),
        ("--vocabulary", source.vocabulary, "tokens"),
        ("--column", source.column, "a saved dataset"),
    ):
        if value is not None:
            raise InputError(f"{flag} is for {what}; name it with --data, or leave it out")
    return own_text()


def _found(source: Source, data: Data) -> Source:
    """The source, with what was found out about its data."""
    from weft.train import SavedTokens, TokenFile

    if source.data is not None:
        source = replace(source, data=source.data.absolute())
    if isinstance(data, TokenFile):
        source = replace(source, token_type=data.token_type, vocabulary=data.vocabulary)
    elif isinstance(data, SavedTokens):
        source = replace(source, column=data.column, vocabulary=data.vocabulary)
    return source
