"""`weft profile`: what a job's stages, messages and host cost on this machine, as a cost file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import RenderableType

from weft.cli.files import check_folder, write
from weft.cli.help import Sectioned
from weft.cli.jobs import SECTIONS, Job, job_options, need_torch, on_ranks, settings_of
from weft.cli.options import as_json
from weft.cli.output import facts, show, show_json, table
from weft.cli.progress import bar
from weft.cost import Cost, Measurement
from weft.draw.caption import title
from weft.errors import InputError
from weft.notation import to_json
from weft.request import is_file

if TYPE_CHECKING:
    from weft.train import Settings

OUT = Path("cost.json")
MEBIBYTE = 2**20
TIMES = {
    "F": "forward",
    "B": "backward",
    "I": "input_grad",
    "W": "weight_grad",
    "R": "recompute",
    "update": "update",
}
SIZES = ("weights", "gradients", "optimizer", "saved", "inputs")


@click.command("profile", cls=Sectioned, sections=SECTIONS)
@job_options
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The cost file.  [default: cost.json]",
)
@click.option("--force", "is_forced", is_flag=True, help="Overwrite FILE.")
@as_json
def command(job: Job, out: Path | None, is_forced: bool, is_json: bool) -> None:
    """Measure what the job of `weft train` costs on this machine, as a file for --cost.

    \b
      $ weft profile -d 2 -n 4
      stage  F           B           I           W           R           update
          0  3.545 ±8%   5.367 ±10%  4.004 ±12%  1.910 ±10%  3.615 ±12%  2.479 ±9%
          1  3.411 ±11%  5.221 ±5%   3.830 ±5%   1.904 ±4%   3.470 ±6%   2.383 ±2%
      ...
      latency    139.6 us   of messages through shared
      bandwidth  6.52 GB/s  fits 7 sizes with R2 1.000
      overhead   25.1 us    of the host, between two actions

    \b
      $ weft simulate 1f1b -d 2 -n 4 --cost cost.json
      $ weft simulate zb-h1 -d 2 -n 8 --cost cost.json
      $ weft draw 1f1b -d 2 -n 4 --cost cost.json
      $ weft train -d 2 -n 4 --cost cost.json

    A process for each device, or each rank of torchrun, times its own stages while all others
    time theirs, so that whatever they share is as busy as in a run: the median of 20 rounds
    after a warm-up, and how far apart their quartiles lie. Messages of 4 KiB to 16 MiB give
    latency and bandwidth; 20 steps of a run, what sums and updates take; stages that only rest,
    what the host needs between two actions.

    The file holds for every schedule that cuts the model into as many stages. It names the model
    and the machine: `weft train` refuses the file of another model. Options are those of `weft
    train`, --config included; steps and learning rate change nothing.

    With --json, one object on the last line, as in the file, and a file only with --out.
    """
    need_torch("profile")
    from weft.train import given_ranks, noise

    with given_ranks() as rank:
        job = job if rank is None else on_ranks(job)
        settings = settings_of(job)
        out = out if is_json else out or OUT
        if out is not None and out.exists() and not is_forced:
            raise InputError(f"{out} exists; name another file, or write over it with --force")
        if out is not None:
            check_folder(out)
        cost = _measured(settings, rank)
    if rank:
        return
    assert cost.measurement is not None
    if warning := noise(cost.measurement):
        click.echo(f"weft: {warning}", err=True)
    if out is not None:
        write(out, to_json(cost))
    if is_json:
        show_json(json.loads(to_json(cost)))
    else:
        show(*_report(settings, cost, cost.measurement), "", _next(job, settings, out))


def _measured(settings: Settings, rank: int | None) -> Cost:
    from weft.train import launched, measured

    with bar("starting the processes", is_shown=not rank) as report:
        work = partial(measured, settings)
        watch = partial(_watch, report)
        if rank is not None:
            return work(watch)
        return launched(work, watch, ranks=settings.program.devices)


def _watch(report: Callable[[float, str], None], what: str, fraction: float) -> None:
    report(fraction, f"measuring {what}")


def _report(settings: Settings, cost: Cost, measurement: Measurement) -> Iterator[RenderableType]:
    """What was measured."""
    yield title(settings.program)
    yield ", ".join(f"{name} {value}" for name, value in measurement.machine.items())
    yield ""
    yield table(*_times(cost, measurement))
    yield f"milliseconds, each the median of {measurement.rounds} or more ± interquartile range"
    yield ""
    yield table(*_sizes(cost))
    yield "MiB; saved and inputs for each microbatch in flight"
    yield ""
    yield facts(_host(cost, measurement))


def _times(cost: Cost, measurement: Measurement) -> tuple[list[str], list[list[str]]]:
    rows = [
        [str(stage), *(_time(cost, measurement, name, stage) for name in TIMES.values())]
        for stage in range(cost.stages)
    ]
    return ["stage", *TIMES], rows


def _time(cost: Cost, measurement: Measurement, name: str, stage: int) -> str:
    if name not in measurement.spread:
        return "-"
    seconds = getattr(cost.times, name)[stage]
    return f"{1e3 * seconds:.3f} ±{measurement.spread[name][stage]:.0%}"


def _sizes(cost: Cost) -> tuple[list[str], list[list[str]]]:
    columns = [getattr(cost.memory, name) for name in SIZES]
    rows = [
        [str(stage), *(f"{column[stage] / MEBIBYTE:.3f}" for column in columns)]
        for stage in range(cost.stages)
    ]
    return ["stage", *SIZES], rows


def _host(cost: Cost, measurement: Measurement) -> Iterator[tuple[str, str, str]]:
    """What lies between the actions."""
    link = cost.network.default
    if measurement.hops:
        how = f"of messages through {measurement.transport}"
        yield "latency", f"{1e6 * link.latency:.1f} us", how
        fit = f"fits {len(measurement.hops)} sizes with R2 {measurement.r_squared:.3f}"
        yield "bandwidth", f"{link.bandwidth / 1e9:.2f} GB/s", fit
    for near in [*cost.network.between.values()][:1]:
        yield "latency", f"{1e6 * near.latency:.1f} us", "of those within a host"
        yield "bandwidth", f"{near.bandwidth / 1e9:.2f} GB/s", "of those within a host"
    yield "overhead", f"{1e6 * cost.overhead:.1f} us", "of the host, between two actions"


def _next(job: Job, settings: Settings, out: Path | None) -> str:
    """What to do with the file."""
    sizes = f"-d {settings.program.devices} -n {settings.program.microbatches}"
    if job.sizes.stages_per_device:
        sizes += f" -k {job.sizes.stages_per_device}"
    shape = "" if is_file(job.schedule) else f" {sizes}"
    return f"Written to {out}: weft simulate {job.schedule}{shape} --cost {out}"
