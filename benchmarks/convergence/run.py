"""Trains small models by every method; losses, held-out accuracy and the largest stable rates.

    python benchmarks/convergence/run.py --json FILE [--processes 16] [--quick] [--digits FILE.npz]

Everything that was run is in the JSON file within seconds; started again with the same file, the
script runs what is missing. `report.py` makes the pictures and the tables.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import quadratic
import torch
import training
from methods import MAIN, METHODS, RULES, SWEPT
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from tasks import write_digits
from training import Run

SAVING = 5.0  # seconds between two writes


class Curve(NamedTuple):
    """Long runs at one rate, that of a round; with how many seeds of the main and other methods."""

    task: str
    optimizer: str
    rate: float
    rounds: int
    main: int = 5
    others: int = 3

    def run(self, name: str, seed: int) -> Run:
        rate = RULES[self.optimizer].rate(self.rate, METHODS[name].microbatches)
        return Run("curve", self.task, self.optimizer, name, rate, seed, self.rounds)


class Sweep(NamedTuple):
    """Short runs at `steps` rates of an update, each `factor` times the one before."""

    task: str
    optimizer: str
    lowest: float
    factor: float
    steps: int
    rounds: int
    seeds: int = 2

    def runs(self, seed: int) -> Iterator[Run]:
        for step in range(self.steps):
            rate = self.lowest * self.factor**step
            for name in SWEPT:
                yield Run("sweep", self.task, self.optimizer, name, rate, seed, self.rounds)


class Size(NamedTuple):
    """How much is run."""

    curves: tuple[Curve, ...]
    sweeps: tuple[Sweep, ...]
    updates: int  # of the comparison of synchronous methods


FULL = Size(
    curves=(
        Curve("bert", "adamw", 0.001, 400),
        Curve("gpt", "adamw-still", 0.002, 300, main=3, others=0),
        Curve("gpt", "adamw", 0.002, 300),
        Curve("digits", "momentum", 0.01, 264),  # 12 passes
    ),
    sweeps=(
        Sweep("bert", "adamw", 0.0005, 2.0, 6, 300),
        Sweep("gpt", "momentum", 0.005, 2**0.5, 12, 80),
        Sweep("gpt", "adamw", 0.0005, 2**0.5, 12, 80),
        Sweep("digits", "sgd", 0.016, 2**0.25, 13, 44),  # 2 passes
        Sweep("digits", "momentum", 0.001, 2**0.5, 14, 44),
        Sweep("digits", "adamw", 0.002, 2**0.5, 11, 44),
    ),
    updates=20,
)
QUICK = Size(
    curves=tuple(
        curve._replace(rounds=10, main=2, others=min(curve.others, 1)) for curve in FULL.curves
    ),
    sweeps=tuple(
        sweep._replace(factor=sweep.factor**4, steps=3, rounds=10, seeds=1) for sweep in FULL.sweeps
    ),
    updates=2,
)


# what is run


def runs(size: Size) -> Iterator[Run]:
    """Curves first, then one seed of all sweeps after the other."""
    for curve in size.curves:
        for name in METHODS:
            for seed in range(curve.main if name in MAIN else curve.others):
                yield curve.run(name, seed)
    for seed in range(max(sweep.seeds for sweep in size.sweeps)):
        for sweep in size.sweeps:
            if seed < sweep.seeds:
                yield from sweep.runs(seed)


# what is kept


class Record:
    """The JSON file: what was found, by what was asked."""

    def __init__(self, file: Path, is_quick: bool) -> None:
        self._file, self._saved = file, 0.0
        self.found: dict[str, Any] = {"is_quick": is_quick, "machines": []}
        self.found |= {"agreement": [], "quadratic": [], "runs": [], "seconds": 0.0}
        if file.exists():
            self.found = json.loads(file.read_text())
        if self.found["is_quick"] != is_quick:
            raise SystemExit(f"{file} is of a {'full' if is_quick else 'quick'} run; name another")
        self.found["machines"].append(machine())

    def lacks(self, part: str, name: str) -> bool:
        key = "method" if part == "quadratic" else "task"
        return all(row[key] != name for row in self.found[part])

    def missing(self, wanted: Iterator[Run]) -> list[Run]:
        done = {Run(*(row[field] for field in Run._fields)) for row in self.found["runs"]}
        return [run for run in wanted if run not in done]

    def add(self, part: str, row: dict[str, Any]) -> None:
        self.found[part].append(row)
        if time.monotonic() - self._saved > SAVING:
            self.save()

    def save(self) -> None:
        beside = self._file.with_suffix(".part")
        beside.write_text(json.dumps(self.found) + "\n")
        beside.replace(self._file)
        self._saved = time.monotonic()


def machine() -> dict[str, Any]:
    """Where and when."""
    return {
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


# running


def timed(job: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
    """In a worker: what a job finds, and how long it takes."""
    before = time.perf_counter()
    return {**job(*given), "seconds": round(time.perf_counter() - before, 2)}


def submitted(
    pool: ProcessPoolExecutor, record: Record, size: Size, digits: Path | None
) -> dict[Future[dict[str, Any]], str]:
    """Every job that has not been done, and the part of the file that it is for."""
    waiting = {}
    for name in dict.fromkeys(curve.task for curve in size.curves):
        if record.lacks("agreement", name):
            given = (timed, training.agreement, name, size.updates, digits)
            waiting[pool.submit(*given)] = "agreement"
    for name in METHODS:
        if record.lacks("quadratic", name):
            waiting[pool.submit(timed, quadratic.limits, name)] = "quadratic"
    for run in record.missing(runs(size)):
        waiting[pool.submit(timed, training.trained, run, digits)] = "runs"
    return waiting


def finish(waiting: dict[Future[dict[str, Any]], str], record: Record) -> int:
    """Record whatever is found; how many failed."""
    failed = 0
    columns = (TimeElapsedColumn(), TimeRemainingColumn())
    line = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*line, *columns) as progress:
        bar = progress.add_task("runs", total=len(waiting))
        for done in as_completed(waiting):
            try:
                record.add(waiting[done], done.result())
            except BrokenProcessPool:
                raise SystemExit(
                    "a worker was killed; start again to run what is missing"
                ) from None
            except Exception as error:
                failed += 1
                progress.console.print(f"{waiting[done]}: {error!r}", markup=False)
            progress.advance(bar)
    return failed


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="of a thread each")
    parser.add_argument("--quick", action="store_true", help="only try whether it works")
    parser.add_argument("--digits", type=Path, help="images and labels, instead of scikit-learn")
    parser.add_argument("--write-digits", type=Path, help="write such a file, and nothing else")
    arguments = parser.parse_args()
    if not arguments.json and not arguments.write_digits:
        parser.error("give --json FILE")
    return arguments


def main() -> None:
    arguments = parsed()
    if arguments.write_digits:
        write_digits(arguments.write_digits)
        return
    record = Record(arguments.json, arguments.quick)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended early; start again for the rest"))
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")  # of workers
    context, before = get_context("forkserver"), time.monotonic()
    context.set_forkserver_preload(["training"])
    pool = ProcessPoolExecutor(arguments.processes, context, torch.set_num_threads, (1,))
    try:
        size = QUICK if arguments.quick else FULL
        failed = finish(submitted(pool, record, size, arguments.digits), record)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        record.found["seconds"] += time.monotonic() - before
        record.save()
    if failed:
        raise SystemExit(f"{failed} failed; start again to run them")


if __name__ == "__main__":
    main()
