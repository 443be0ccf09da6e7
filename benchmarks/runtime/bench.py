"""How a benchmark runs: rows, the ranks of each, statistics, a table and a JSON file.

The script makes one row after the other: it starts a row's ranks, hears a word from rank 0 in
every round, takes what each rank has found, and prints and saves the row.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from contenders import WARM_UP, Samples, Setting, meet
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

Watch = Callable[[], None]  # called once in every round
Job = Callable[[Setting, argparse.Namespace, Watch], dict[str, Any]]
Opening = Callable[[int, str, Setting, argparse.Namespace], None]  # rank, file of the store

PRIORITY = 5  # of SCHED_RR, as by `chrt -r 5`
RESAMPLES = 1000
STEPS = 15
FAREWELL = 5.0  # seconds that a rank gets to end

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(["weft.runtime", "torch.distributed.pipelining", "rich.progress"])


# the command line


def parsed(description: str | None, **defaults: Sequence[Any]) -> argparse.Namespace:
    """The arguments that every script takes; `--quick` only tries whether it works."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+")
    parser.add_argument("--microbatches", type=int, nargs="+")
    parser.add_argument("--schedules", nargs="+")
    parser.add_argument("--steps", type=int, help="of each contender, after a warm-up")
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--quick", action="store_true", help="fewest ranks, microbatches, steps")
    parser.add_argument("--transport", default="auto", help="of Weft: auto, shared or gloo")
    parser.add_argument("--alone", action="store_true", help="without torch (compute.py)")
    parser.add_argument("--weights", type=float, help="MB of a stage, all updated (predict.py)")
    parser.add_argument("--timeout", type=int, default=300, help="seconds of a row")
    arguments = parser.parse_args()
    arguments.steps = arguments.steps or (3 if arguments.quick else STEPS)
    if arguments.quick:
        defaults |= {name: defaults[name][:1] for name in ("ranks", "microbatches")}
    for name, values in defaults.items():
        setattr(arguments, name, getattr(arguments, name) or list(values))
    return arguments


def settings(arguments: argparse.Namespace) -> Iterator[Setting]:
    for ranks in arguments.ranks:
        for microbatches in arguments.microbatches:
            for schedule in arguments.schedules:
                yield Setting(schedule, ranks, microbatches)


# statistics


class Estimate(NamedTuple):
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float

    def shown(self, scale: float = 1.0, digits: int = 2) -> str:
        value, low, high = (f"{part * scale:.{digits}f}" for part in self)
        return f"{value} ({low}–{high})"


def estimate(statistic: Callable[..., Any], *samples: Samples) -> Estimate:
    """A statistic of the medians of samples of the same rounds; the bootstrap draws rounds."""
    count = len(samples[0])
    drawn = np.random.default_rng(0).integers(0, count, (RESAMPLES, count))
    resampled = statistic(*(np.median(sample[drawn], axis=1) for sample in samples))
    value = statistic(*(np.median(sample, axis=0) for sample in samples))
    return Estimate(float(value), *np.quantile(resampled, (0.025, 0.975)).tolist())


def median(samples: Samples) -> Estimate:
    return estimate(lambda middle: middle, samples)


# the report


class Row(NamedTuple):
    """A line of the table, and what the JSON file says of it."""

    cells: Sequence[str]
    facts: Mapping[str, Any]


def reported(
    arguments: argparse.Namespace,
    columns: Sequence[str],
    rows: Sequence[Setting],
    make: Callable[[Setting, Watch], Row],
    *,
    rounds: int = 0,
) -> None:
    """Make the rows one by one; whatever ends the script, those made are printed and saved.

    A row of another kind of setting is one with a `refusal`; it may have rounds of its own.
    """
    console = Console(width=None if os.isatty(1) else 220)
    table = Table(*rows[0]._fields, *columns, box=box.MARKDOWN)
    rounds = rounds or arguments.steps + WARM_UP
    made: list[dict[str, Any]] = []
    with Progress(console=console, auto_refresh=False) as progress:
        bar = progress.add_task("", total=len(rows) * rounds)
        for setting in rows:
            name = [str(part) for part in setting]
            progress.update(bar, description=" ".join(name), completed=len(made) * rounds)
            row = _made(setting, make, lambda: progress.update(bar, advance=1, refresh=True))
            table.add_row(*name, *row.cells)
            console.print(_line(name, row), markup=False)
            made.append({**setting._asdict(), **row.facts})
            _save(arguments, made)
    console.print(table)


def _made(setting: Setting, make: Callable[[Setting, Watch], Row], watch: Watch) -> Row:
    """A row; where there is none, why."""
    if setting.refusal:
        return Row(["refused"], {"refused": setting.refusal})
    try:
        return make(setting, watch)
    except Exception as error:
        return Row(["failed"], {"failed": f"{type(error).__name__}: {error}"})


def _line(name: Sequence[str], row: Row) -> str:
    reasons = [row.facts[reason] for reason in ("refused", "failed") if reason in row.facts]
    return "  ".join([*name, *row.cells, *reasons])


def _save(arguments: argparse.Namespace, rows: Sequence[Mapping[str, Any]]) -> None:
    if arguments.json:
        asked = {name: value for name, value in vars(arguments).items() if name != "json"}
        document = {"machine": machine(), "arguments": asked, "rows": rows}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """Where and when the figures were measured."""
    return {
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "is_realtime": _may_hurry(),
    }


# ranks


def over_gloo(rank: int, store: str, setting: Setting, arguments: argparse.Namespace) -> None:
    """Make this process a rank of a group over gloo, as urgent as it may be."""
    hurry()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    init("gloo", rank, store, setting, arguments)


def init(
    backend: str, rank: int, store: str, setting: Setting, arguments: argparse.Namespace
) -> None:
    """Make the process group of a row."""
    dist.init_process_group(
        backend,
        init_method=f"file://{store}",
        rank=rank,
        world_size=setting.ranks,
        timeout=datetime.timedelta(seconds=arguments.timeout),
    )


def run(
    job: Job,
    setting: Setting,
    arguments: argparse.Namespace,
    watch: Watch,
    opening: Opening = over_gloo,
) -> list[Any]:
    """What the job returns on each rank, once `opening` has made the process one."""
    heard, processes = [], []
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        for rank in range(setting.ranks):
            ours, theirs = CONTEXT.Pipe(duplex=False)
            given = (rank, f"{folder}/store", theirs, job, setting, arguments, opening)
            processes.append(CONTEXT.Process(target=_rank, args=given, daemon=True))
            processes[-1].start()
            theirs.close()
            heard.append(ours)
        try:
            answers = _answers(heard, watch)
            for process in processes:
                process.join(FAREWELL)
            return answers
        finally:
            for process in processes:
                process.kill()


def _answers(heard: Sequence[Connection], watch: Watch) -> list[Any]:
    answers: dict[int, Any] = {}
    while len(answers) < len(heard):
        waiting = {id(one): rank for rank, one in enumerate(heard) if rank not in answers}
        for connection in wait([heard[rank] for rank in waiting.values()]):
            rank = waiting[id(connection)]
            try:
                told = connection.recv()
            except EOFError:
                raise RuntimeError(f"rank {rank} ended early, perhaps by its timeout") from None
            if isinstance(told, str):
                raise RuntimeError(told)
            if told is None:
                watch()
            else:
                answers[rank] = told
    return [answers[rank] for rank in range(len(heard))]


def _rank(
    rank: int,
    store: str,
    telling: Connection,
    job: Job,
    setting: Setting,
    arguments: argparse.Namespace,
    opening: Opening,
) -> None:
    """A rank ends by itself, at the latest by its alarm."""
    signal.alarm(arguments.timeout)
    torch.set_num_threads(1)
    try:
        opening(rank, store, setting, arguments)
        dist.all_to_all_single(torch.empty(setting.ranks), torch.zeros(setting.ranks))  # all meet
        found = job(setting, arguments, (lambda: telling.send(None)) if rank == 0 else lambda: None)
        meet()
        telling.send(found)
    except Exception:
        telling.send(traceback.format_exc())


def hurry() -> bool:
    """Real-time priority for all threads to come, where it is permitted."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))
    except PermissionError:
        return False
    return True


def _may_hurry() -> bool:
    """Whether ranks run with real-time priority."""
    is_permitted = hurry()
    if is_permitted:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return is_permitted
