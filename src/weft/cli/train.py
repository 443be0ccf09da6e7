"""`weft train`: a schedule trains a model on this machine, predicted and then measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import click
from rich.console import RenderableType

from weft.cli.help import Sectioned
from weft.cli.jobs import (
    SECTIONS,
    Job,
    as_config,
    job_options,
    need_torch,
    on_ranks,
    settings_of,
)
from weft.cli.options import as_json
from weft.cli.output import facts, show, show_json, table
from weft.cli.progress import bar
from weft.cost import Cost
from weft.draw.caption import percent, title
from weft.errors import InputError
from weft.notation import read_cost

if TYPE_CHECKING:
    from weft.train import Metrics, Outcome, Settings

RUNS = Path("runs")
MEBIBYTE = 2**20


@click.command("train", cls=Sectioned, sections=SECTIONS)
@job_options
@click.option(
    "--reference",
    "is_reference",
    is_flag=True,
    help="Run the same job in one process, without a pipeline: the same losses.",
)
@click.option(
    "--cost",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Predict with what `weft profile` measured.  [default: measure it briefly]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Run folder.  [default: runs/NAME]",
)
@as_json
def command(
    job: Job,
    is_reference: bool,
    cost: Path | None,
    out: Path | None,
    is_json: bool,
) -> None:
    """Train a small GPT, or a model of Hugging Face, in a real process for each device.

    \b
      $ weft train --schedule zbv -d 2 -n 4
      zbv: 2 devices, 4 microbatches, 4 stages
      loss         4.013 at step 1, 2.381 at step 50
      ...
      Written to runs/zbv; open its page.html in a browser.

    \b
      $ weft train --schedule zbv -d 2 -n 4 --steps 20 --dropout 0.1 --data my.txt
      $ weft train --data tokens.bin --vocabulary 50257 --context 128
      $ weft train --model llama/config.json --schedule zbv -d 2 -n 4
      $ weft train --config run.toml --steps 20
      $ weft train --config runs/1f1b/settings.toml
      $ weft train --schedule zbv -d 2 -n 4 --steps 20 --json
      $ weft train --schedule zbv -d 2 -n 4 --steps 20 --json --reference
      $ weft train --schedule wpipe -d 2 -n 4 --switch-after 10
      $ weft train --cost cost.json
      $ weft train --accelerator auto
      $ torchrun --nproc-per-node 4 -m weft train --schedule 1f1b

    Every rank first times its own stages while all others do, unless `weft profile` has done so
    (--cost); from that the step is predicted, then measured. Prints both and writes a run folder:
    page.html with measured over predicted, both timelines as JSON and for ui.perfetto.dev,
    metrics.jsonl with a line for each step, the same as events for TensorBoard where that is
    installed, program.txt, summary.json, settings.toml.

    The file of --config has a line for each option, like learning-rate = 0.003 or
    schedule = "zbv"; the command line wins over it. settings.toml is such a file, with all that
    was asked for and all defaults: it gives the same losses again.

    A .bin holds tokens, little-endian and nothing else (as nanoGPT writes it), a .npy integers.
    The file may be larger than memory; to find the vocabulary it is read once, unless
    --vocabulary gives it. A folder that `save_to_disk` of Hugging Face's datasets wrote is read
    with pyarrow (pip install 'weft[datasets]'): lists of integers are tokens, one list after the
    other, strings a text; of several splits, it is the one named train.

    Which sequences a step has is decided by --seed alone, on every schedule: they come from
    anywhere in the data, or with --shuffle each once in every epoch.

    With --json, one object on the last line, and a folder only with --out: losses (one for each
    step), predicted_step and measured_step (seconds, the median), bubble {wall, span} of the
    median step, peak_memory (for each device, bytes of weights, gradients, optimizer and of
    the saved state in flight), accelerator. With --reference only losses, equal to the last
    digit.

    Asynchronous schedules train with weights that are stale by whole updates, exactly as
    --reference does with the same versions. pipedream and naive-async update after every
    microbatch, so that a step is one; predicted and measured steps are means from fill to drain.
    With --json there are also staleness and versions, for each stage.

    With --accelerator cuda every rank has a GPU of its own, and --reference runs on one of them:
    losses are equal on one kind of accelerator, not from one to another. torch's deterministic
    algorithms are on for that.

    Nothing is sent off this machine. Under torchrun the ranks are those that it started.
    """
    need_torch("train")
    from weft.train import check_free, checked, free_folder, given_ranks, summary

    with given_ranks() as rank:
        job = job if rank is None else on_ranks(job)
        settings = settings_of(job)
        if out is not None:
            check_free(out)
        if is_reference:
            if not rank:
                _show_losses(checked(settings), is_json)
            return
        config = as_config(job, settings)
        outcome = _run(settings, rank, _cost(settings, cost, rank))
    if rank:
        return
    if not is_json:
        out = out or free_folder(RUNS, settings.program.name)
    if out is not None:
        _write(out, outcome, config)
    if is_json:
        show_json(summary(outcome))
    else:
        show(*_report(outcome, out))


def _cost(settings: Settings, file: Path | None, rank: int | None) -> Cost | None:
    """The cost of a file, if it is that of this job; warnings say what speaks against it."""
    from weft.train import check_cost, doubts

    if file is None:
        return None
    cost = read_cost(file)
    try:
        check_cost(settings, cost)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    for doubt in [] if rank else doubts(settings, cost):
        click.echo(f"weft: {file}: {doubt}", err=True)
    return cost


def _run(settings: Settings, rank: int | None, cost: Cost | None) -> Outcome:
    from weft.train import launched, trained

    with bar("profiling the stages" if cost is None else "starting", is_shown=not rank) as report:
        work = partial(trained, settings, cost=cost)
        watch = partial(_watch, report, settings.steps)
        if rank is not None:
            return work(watch)
        return launched(work, watch, ranks=settings.program.devices)


def _watch(report: Callable[[float, str], None], steps: int, metrics: Metrics) -> None:
    report(metrics.step / steps, _line(metrics, steps))


def _write(folder: Path, outcome: Outcome, config: str) -> None:
    """Write the run folder; a message says what it lacks."""
    from weft.train import can_write_events, write_run
    from weft.web import page

    shown = page([outcome.predicted, outcome.measured], ["predicted", "measured"])
    write_run(folder, outcome, {"settings.toml": config, "page.html": shown})
    if not can_write_events():
        lacking = "weft: no events for TensorBoard, as its package is not installed; to have them:"
        click.echo(f"{lacking} pip install 'weft[tensorboard]'", err=True)


def _line(metrics: Metrics, steps: int) -> str:
    figures = [
        f"step {metrics.step}/{steps}",
        f"loss {metrics.loss:.3f}",
        f"lr {metrics.learning_rate:.1e}",
        "" if metrics.gradient_norm is None else f"norm {metrics.gradient_norm:.2f}",
        f"{metrics.tokens_per_second:,.0f} tokens/s",
        "" if metrics.bubble is None else f"bubble {percent(metrics.bubble)}",
        f"staleness {metrics.staleness}" if metrics.bubble is None else "",
    ]
    return "  ".join(filter(None, figures))


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
    figures = [
        ("loss", f"{first.loss:.3f} at step 1, {last.loss:.3f} at step {last.step}"),
        ("tokens/s", f"{median(m.tokens_per_second for m in outcome.metrics):,.0f} at a step"),
        ("peak memory", f"{max(outcome.peak_memory) / MEBIBYTE:.1f} MiB on a device"),
        ("computed on", outcome.accelerator),
    ]
    if any(outcome.staleness):
        figures.append(("staleness", f"{_each(outcome.staleness)} updates, by stage"))
        figures.append(("versions", f"{_each(outcome.versions)} copies of the weights, by stage"))
    yield facts(figures)
    yield ""
    steps = outcome.measured.program.steps
    rows = [
        (name, f"{1e3 * line.makespan / steps:.2f}", *map(percent, line.bubble))
        for name, line in (("predicted", outcome.predicted), ("measured", outcome.measured))
    ]
    yield table(("step", "milliseconds", "bubble wall", "bubble span"), rows)
    if steps > 1:
        yield f"A step is the mean of {steps} updates, with the filling and the draining."
    devices, cores = outcome.measured.program.devices, os.cpu_count() or 1
    if devices > cores and outcome.accelerator == "CPU":
        yield f"Here {devices} devices share {cores} cores; stages were timed with all at work."
    if folder is not None:
        yield ""
        yield f"Written to {folder}; open its page.html in a browser."


def _each(values: list[int]) -> str:
    return " ".join(map(str, values))
