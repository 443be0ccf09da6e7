"""`weft train`: a schedule trains a small GPT on this machine, predicted and then measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import RenderableType

from weft.cli.options import Sizes, as_json, bundled, count, schedule_names
from weft.cli.output import facts, show, show_json, table
from weft.cli.requests import program_of
from weft.draw.caption import number, percent, title
from weft.errors import InputError
from weft.ir.program import Program

if TYPE_CHECKING:
    from weft.train import Metrics, Outcome, Settings

RUNS = Path("runs")
MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True)
class Choice:
    """Which program was asked for."""

    schedule: str
    devices: int | None
    microbatches: int | None
    stages_per_device: int | None
    variant: str
    pipes: int


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


CHOICE = (
    click.option(
        "--schedule",
        default="1f1b",
        show_default=True,
        metavar="NAME",
        shell_complete=schedule_names,
        help="A schedule, or the file of a program.",
    ),
    count("-d", "--devices", metavar="D", help="A process for each.  [default: 4]"),
    count("-n", "--microbatches", metavar="N", help="Of a step.  [default: 2 D]"),
    count("-k", "--stages-per-device", metavar="K", help="[default: the least that NAME takes]"),
    click.option("--variant", default="", help="A variant of NAME."),
    count("--pipes", metavar="f", default=1, help="Pipes in each direction, for chimera."),
)


def _whole(
    name: str, default: int, help: str, least: int = 1
) -> Callable[..., Callable[..., None]]:
    return count(name, metavar="N", default=default, show_default=True, least=least, help=help)


JOB = (
    _whole("--steps", 50, "Steps, an update each."),
    _whole("--seed", 0, "Of weights, batches and dropout.", least=0),
    _whole("--microbatch-size", 4, "Sequences of a microbatch."),
    click.option(
        "--learning-rate",
        type=click.FloatRange(0, 1, min_open=True),
        default=3e-3,
        show_default=True,
        metavar="RATE",
        help="At its highest.",
    ),
    click.option(
        "--dropout",
        type=click.FloatRange(0, 1, max_open=True),
        default=0.0,
        show_default=True,
        metavar="SHARE",
        help="The same on every schedule.",
    ),
    _whole("--layers", 8, "Blocks of the model; with embedding and head two more stages."),
    _whole("--hidden", 64, "Width of the model."),
    _whole("--heads", 4, "Of the attention."),
    _whole("--context", 64, "Characters of a sequence."),
    click.option("--data", type=Path, metavar="FILE", help="A text.  [default: Weft's own]"),
)


@click.command("train")
@bundled("choice", Choice, CHOICE)
@bundled("job", Job, JOB)
@click.option(
    "--reference",
    "is_reference",
    is_flag=True,
    help="The same job in one process, with no pipeline: the same losses.",
)
@click.option("--out", type=Path, metavar="FOLDER", help="The run folder.  [default: runs/NAME]")
@as_json
def command(choice: Choice, job: Job, is_reference: bool, out: Path | None, is_json: bool) -> None:
    """Train a small GPT on a text, with a real process for each device.

    \b
      $ weft train
      $ weft train --schedule zbv -d 2 -n 4 --steps 20 --dropout 0.1 --data my.txt
      $ weft train --schedule zbv -d 2 -n 4 --steps 20 --json
      $ weft train --schedule zbv -d 2 -n 4 --steps 20 --json --reference
      $ torchrun --nproc-per-node 4 -m weft train --schedule 1f1b

    Every rank first times its own stages; from that the step is predicted, then measured. Prints
    both and writes a run folder: program.txt, timelines measured and predicted (as JSON and for
    ui.perfetto.dev), metrics.jsonl with a line for each step, summary.json.

    With --json one object on the last line, and a folder only with --out: losses (one for each
    step), predicted_step and measured_step (seconds, the median), bubble {wall, span} of the
    median step, peak_memory (for each device, bytes of weights, gradients, optimizer and of
    the saved state in flight). With --reference only losses, equal to the last digit.

    Nothing is sent off this machine. Under torchrun the ranks are those that it started.
    Schedules that do not flush cannot train yet.
    """
    _need_torch()
    from weft.train import check_free, checked, free_folder, given_ranks, summary, write_run

    with given_ranks() as rank:
        settings = _settings(choice, job, rank)
        if out is not None:
            check_free(out)
        if is_reference:
            if not rank:
                _show_losses(checked(settings), is_json)
            return
        outcome = _run(settings, rank)
    if rank:
        return
    if not is_json:
        out = out or free_folder(RUNS, settings.program.name)
    if out is not None:
        write_run(out, outcome)
    if is_json:
        show_json(summary(outcome))
    else:
        show(*_report(outcome, out))


def _need_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise InputError("weft train needs PyTorch: pip install 'weft[torch]'") from None


def _settings(choice: Choice, job: Job, rank: int | None) -> Settings:
    from weft.train import Settings, own_text, text_of

    return Settings(
        program=_program(choice, rank),
        text=text_of(job.data) if job.data else own_text(),
        steps=job.steps,
        seed=job.seed,
        microbatch_size=job.microbatch_size,
        learning_rate=job.learning_rate,
        dropout=job.dropout,
        layers=job.layers,
        hidden=job.hidden,
        heads=job.heads,
        context=job.context,
    )


def _program(choice: Choice, rank: int | None) -> Program:
    devices = choice.devices
    if rank is not None and devices is None:
        import torch.distributed as dist

        devices = dist.get_world_size()
    sizes = Sizes(
        devices,
        choice.microbatches,
        choice.stages_per_device,
        variant=choice.variant,
        pipes=choice.pipes,
    )
    program = program_of(choice.schedule, sizes)
    if program.period is not None or (program.actions.version >= 0).any():
        raise InputError(
            f"{program.name} does not flush, and asynchronous training comes later;"
            " choose a synchronous schedule from `weft list`"
        )
    return program


def _run(settings: Settings, rank: int | None) -> Outcome:
    from weft.train import launched, trained

    with _watching(settings.steps, is_shown=not rank) as watch:
        return launched(settings, watch) if rank is None else trained(settings, watch)


@contextmanager
def _watching(steps: int, *, is_shown: bool) -> Iterator[Callable[[Metrics], None]]:
    """A bar on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    if not (is_shown and console.is_terminal):
        yield lambda metrics: None
        return
    words = TextColumn("{task.description}")
    with Progress(BarColumn(bar_width=20), words, console=console, transient=True) as progress:
        task = progress.add_task("profiling the stages", total=steps)
        yield lambda metrics: progress.update(task, advance=1, description=_line(metrics, steps))


def _line(metrics: Metrics, steps: int) -> str:
    return (
        f"step {metrics.step}/{steps}  loss {metrics.loss:.3f}  lr {metrics.learning_rate:.1e}"
        f"  norm {metrics.gradient_norm:.2f}  {metrics.tokens_per_second:,.0f} tokens/s"
        f"  bubble {percent(metrics.bubble)}"
    )


def _show_losses(losses: list[float], is_json: bool) -> None:
    if is_json:
        show_json({"losses": losses})
    else:
        show(table(("step", "loss"), [(str(i + 1), str(loss)) for i, loss in enumerate(losses)]))


def _report(outcome: Outcome, folder: Path | None) -> Iterator[RenderableType]:
    """Predicted against measured, and where the rest is."""
    first, last = outcome.metrics[0], outcome.metrics[-1]
    yield title(outcome.measured.program)
    yield ""
    yield facts(
        [
            ("loss", f"{first.loss:.3f} at step 1, {last.loss:.3f} at step {last.step}"),
            ("tokens/s", f"{last.tokens_per_second:,.0f} at the last step"),
            ("peak memory", f"{number(max(outcome.peak_memory) / MEBIBYTE)} MiB on a device"),
        ]
    )
    yield ""
    rows = [
        (name, f"{1e3 * line.makespan:.2f}", *map(percent, line.bubble))
        for name, line in (("predicted", outcome.predicted), ("measured", outcome.measured))
    ]
    yield table(("step", "milliseconds", "bubble wall", "bubble span"), rows)
    devices, cores = outcome.measured.program.devices, os.cpu_count() or 1
    if devices > cores:
        yield f"Here {devices} devices share {cores} cores; the prediction gives each its own."
    if folder is not None:
        yield ""
        yield f"Written to {folder}; open its *.perfetto.json in ui.perfetto.dev."
