"""`weft train`: a schedule trains a model on this machine, predicted and then measured."""

from __future__ import annotations

import os
from collections.abc import Iterator
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
    saving_options,
    settings_of,
)
from weft.cli.options import as_json
from weft.cli.output import facts, show, show_json, table
from weft.cli.progress import working
from weft.cli.runs import Run, folder_for, run_files
from weft.cost.units import BYTES, fitting
from weft.draw.caption import percent, title
from weft.request import PlanFile, Saving

if TYPE_CHECKING:
    from weft.train import Outcome

MEBIBYTE = 2**20


@click.command("train", cls=Sectioned, sections=SECTIONS)
@job_options
@saving_options
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
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Run folder.  [default: runs/NAME]",
)
@as_json
def command(
    job: Job,
    saving: Saving,
    is_reference: bool,
    cost: Path | None,
    out: Path | None,
    is_json: bool,
) -> None:
    """Train a small GPT or mixture of experts, or a model of Hugging Face, in real processes.

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
      $ weft train --plan plan.json --steps 20
      $ weft train --accelerator auto
      $ weft train --replicas 2 -d 2
      $ weft train --model moe-small --schedule kimi-k2 -d 2 -n 4 --offload auto
      $ weft train --model moe-small --schedule kimi-k2 -d 2 -n 4 --expert-ranks 2
      $ weft train --save-every 100 --keep 3 --out runs/long
      $ weft train --config runs/1f1b/settings.toml --out runs/1f1b --resume
      $ torchrun --nproc-per-node 4 -m weft train --schedule 1f1b
      $ torchrun --nproc-per-node 4 --max-restarts 9 -m weft train --save-every 9 --out a --resume

    Every rank first times its own stages while all others do, unless `weft profile` has done so
    (--cost); from that the step is predicted, then measured. Prints both and writes a run folder:
    page.html with measured over predicted, both timelines as JSON and for ui.perfetto.dev,
    metrics.jsonl with a line for each step, the same as events for TensorBoard where that is
    installed, program.txt, summary.json, settings.toml. All of it is written as the run goes on:
    steps as soon as they are over, timelines and page now and then.

    SIGTERM or SIGINT (Ctrl-C), to any of the processes, ends a run after the step that is under
    way and saves it in its folder, with exit status 143 or 130; a second one ends it at once.
    --save-every saves while the run goes on, and --stop-after ends it early. --resume goes on
    from the newest complete save with the same losses, bit for bit, as the run that nobody
    interrupted and that saved after the same steps; settings that would change them are refused
    by name. With --reshape it goes on by another schedule, on another number of devices or with
    other replicas, with as many sequences in a step: losses then differ by rounding. Where
    nothing is saved yet, --resume begins, so that one command line will do for every start:
    torchrun --max-restarts starts all ranks again when one dies.

    --plan trains what `weft plan` found: its program on as many devices, replicas and expert
    ranks, the layers of each stage, the sizes of the model and of a microbatch, sharding,
    recomputation and offload. Where T devices share every layer, as many processes do, by torch's
    tensor parallelism; losses are then those of the reference but for rounding. Options that say
    one of these again are refused. A config.json of the planned sizes may be given with --model.
    What the plan predicted for its devices stands beside what is predicted and measured here.

    --replicas trains R copies of the pipeline in R x D processes, each with its own N
    microbatches of a step. --expert-ranks lets E of them share the experts of every layer, in
    E x D processes for each replica: each holds some of the experts, and tokens travel to them
    and back.

    Where a schedule has pairs, as kimi-k2 and dualpipe do, the layers of a mixture of experts
    are cut into attention, dispatch, experts and combine, so that one microbatch computes while
    tokens of another travel; other schedules run whole stages, unless --experts asks for that.
    --offload moves what forwards keep to the host until its backward. Neither changes a loss.

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
    from weft.train import checked, given_ranks, summary

    with given_ranks() as rank:
        job = job if rank is None else on_ranks(job)
        settings = settings_of(job)
        out = folder_for(settings, saving, out, is_kept=not (is_json or is_reference))
        if is_reference:
            if not rank:
                with working("training in one process, without a pipeline"):
                    losses = checked(settings, saving)
                _show_losses(losses, is_json)
            return
        run = Run(settings, saving, run_files(out, as_config(job, settings)), rank)
        outcome, status = run.done(run.cost(cost))
    if status is not None:
        raise SystemExit(status)
    if rank:
        return
    if is_json:
        show_json(summary(outcome))
    else:
        show(*_report(outcome, out))


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
        (name, f"{1e3 * line.makespan / line.program.steps:.2f}", *map(percent, line.bubble))
        for name, line in outcome.timelines.items()
    ]
    yield table(("step", "milliseconds", "bubble wall", "bubble span"), rows)
    if outcome.planned is not None:
        yield ""
        names = ("", "planned", "predicted here", "measured")
        yield table(names, [*_beside(outcome, outcome.planned)])
    if steps > 1:
        yield f"A step is the mean of {steps} updates, with the filling and the draining."
    devices, cores = outcome.measured.program.devices, os.cpu_count() or 1
    if devices > cores and outcome.accelerator == "CPU":
        yield f"Here {devices} devices share {cores} cores; stages were timed with all at work."
    if folder is not None:
        yield ""
        yield f"Written to {folder}; open its page.html in a browser."


def _beside(outcome: Outcome, planned: PlanFile) -> Iterator[tuple[str, ...]]:
    """What a plan said, what its stages come to on this machine, and what was measured."""
    plan = planned.plan.predicted or planned.plan.prediction()
    here, there = outcome.predicted, outcome.measured
    steps = (plan.seconds, outcome.predicted_step, outcome.measured_step)
    yield "step, ms", *(f"{1e3 * seconds:.2f}" for seconds in steps)
    yield "bubble wall", *map(percent, (plan.bubble, here.bubble.wall, there.bubble.wall))
    peaks = [*zip(plan.memory, here.memory.peaks, there.memory.peaks, strict=False)]
    unit = fitting(max(max(sizes) for sizes in peaks), BYTES)
    for device, sizes in enumerate(peaks):
        yield f"memory of device {device}, {unit.name}", *map(unit.number, sizes)


def _each(values: list[int]) -> str:
    return " ".join(map(str, values))
