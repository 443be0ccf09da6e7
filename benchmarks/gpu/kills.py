"""Kills at random moments: do all other ranks say why, and end in time?

    python benchmarks/gpu/kills.py [--kills 30] [--transports peer] [--jobs 4] [--json FILE]
    python benchmarks/gpu/kills.py --device cpu --kills 6 --jobs 1

Every job is two or three ranks that share the GPU without MPS. One of them kills itself (SIGKILL),
raises, or stalls indefinitely: at a random forward or backward (a stall after the first step),
while the pipeline is made, or in a save, of which the one before has to stay readable.
From then on the others have the deadline and some seconds; what is left of a job then is killed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from borrowed import LATE, UNSAVED, Rank, machine, said, strays
from common import ON_CPU, backend, mps, own_host
from rich import box
from rich.console import Console
from rich.table import Table
from struck import KINDS, PHASES, READER, REASON, Job

SCRIPT = Path(__file__).with_name("struck.py")
SCHEDULES = ("1f1b", "interleaved-1f1b", "zbv", "wpipe", "chimera")
EVEN = ("chimera",)  # only with an even number of ranks
GRACE = 5.0  # seconds after the deadline
READING = 120.0  # seconds in which a save is loaded
POLL = 0.02
COLUMNS = (
    "kills",
    "ended in time",
    "named the cause",
    "left over",
    "saves lost",
    "last error s",
    "last end s",
    "not struck",
)


# jobs


def jobs_of(arguments: argparse.Namespace, transport: str) -> Iterator[Job]:
    """The same for the same seed: every kind as often in every phase, the rest by chance."""
    chance = random.Random(f"{arguments.seed} {transport}")
    for number in range(arguments.kills):
        turn, kind = divmod(number, len(KINDS))
        ranks = chance.choice((2, 3))
        schedule = chance.choice([one for one in SCHEDULES if ranks == 2 or one not in EVEN])
        job = Job(
            kind=[*KINDS][kind],
            victim=chance.randrange(ranks),
            call=0,
            schedule=schedule,
            ranks=ranks,
            device=arguments.device,
            transport=transport,
            backend=backend(transport),
            deadline=arguments.deadline,
            phase=arguments.phases[turn % len(arguments.phases)],
        )
        yield job._replace(call=chance.randrange(job.moments))


class Outcome(NamedTuple):
    """What became of a job; `struck` is the moment, if it was reached."""

    job: Job
    struck: str
    ranks: Sequence[Rank]
    strays: int  # processes that ranks have left
    lost: str = ""  # why the last complete save cannot be read

    @property
    def others(self) -> list[Rank]:
        """Those that have to end by themselves: one that raises does, too."""
        return [
            rank
            for number, rank in enumerate(self.ranks)
            if number != self.job.victim or self.job.kind == "raise"
        ]

    @property
    def is_in_time(self) -> bool:
        return all(rank.seconds is not None for rank in self.others)

    @property
    def is_named(self) -> bool:
        """Whether all say what it was; one that waits for another that waits may know no more."""
        said = [rank.said for rank in self.others]
        return all(is_cause(self.job, one) for one in said) and any(
            f"device {self.job.victim}" in one for one in said
        )

    @property
    def left_over(self) -> int:
        return self.strays + sum(rank.seconds is None for rank in self.others)

    @property
    def slowest(self) -> tuple[float, float]:
        """Seconds until the last error, and until the last rank was gone."""
        raised, ended = zip(*((rank.raised, rank.seconds) for rank in self.others), strict=True)
        return max(one or 0.0 for one in raised), max(one or 0.0 for one in ended)


def is_cause(job: Job, said: str) -> bool:
    """Whether an error of Weft says what happened, or it is the error itself."""
    if job.phase != "steps" and (job.kind, said) == ("raise", f"RuntimeError: {REASON}"):
        return True
    gone = rf"device {job.victim} (died|has left)"
    what = {"kill": gone, "raise": rf"device {job.victim} failed.* {REASON}", "stall": LATE}
    causes = [what[job.kind]]
    if job.phase == "start-up":  # others may wait for it to come, or notice the end of its script
        causes += [gone, LATE]
    return any(re.match(rf"weft\.errors\.\w+: {UNSAVED}{one}", said) for one in causes)


# a job


def outcome(job: Job, arguments: argparse.Namespace) -> Outcome:
    """Run a job to its end, which comes at the latest by its timeout."""
    with tempfile.TemporaryDirectory(prefix="weft-kills-") as name, mps(0) as variables:
        folder = Path(name)
        processes = [_started(job, rank, folder, variables) for rank in range(job.ranks)]
        try:
            _wait_until(lambda: _is_over(folder, processes), time.monotonic() + arguments.timeout)
            mark = _read(folder / "struck")
            ends = _ends(job, processes, mark["when"]) if mark else [None] * job.ranks
        finally:
            for process in processes:
                process.kill()
                process.wait()
        ranks = [
            Rank(_raised(folder, rank), end, process.returncode, said(folder / f"{rank}.txt"))
            for rank, (end, process) in enumerate(zip(ends, processes, strict=True))
        ]
        left = len(strays(process.pid for process in processes))
        lost = _lost(job, folder, variables) if mark and job.phase == "save" else ""
        return Outcome(job, mark.get("what", ""), ranks, left, lost)


def _started(
    job: Job, rank: int | str, folder: Path, variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **own_host(0 if rank == READER else int(rank)), **variables}
    command = [sys.executable, str(SCRIPT), json.dumps(job._asdict()), str(rank), str(folder)]
    with (folder / f"{rank}.txt").open("wb") as file:
        return subprocess.Popen(
            command, env=environment, stdout=file, stderr=file, start_new_session=True
        )


def _lost(job: Job, folder: Path, variables: Mapping[str, str]) -> str:
    """Why another process cannot go on from the last complete save."""
    reader = _started(job, READER, folder, variables)
    try:
        return said(folder / f"{READER}.txt") if reader.wait(READING) else ""
    except subprocess.TimeoutExpired:
        return f"took longer than {READING:g} s"
    finally:
        reader.kill()
        reader.wait()


def _is_over(folder: Path, processes: Sequence[subprocess.Popen[bytes]]) -> bool:
    """Whether a rank was struck, or one has ended without it."""
    return (folder / "struck").exists() or any(one.poll() is not None for one in processes)


def _ends(
    job: Job, processes: Sequence[subprocess.Popen[bytes]], when: float
) -> list[float | None]:
    """Seconds from then to the end of each rank, of those that end in time."""
    ends: list[float | None] = [None] * len(processes)
    waited_for = [r for r in range(job.ranks) if r != job.victim or job.kind != "stall"]

    def are_over() -> bool:
        for rank, process in enumerate(processes):
            if ends[rank] is None and process.poll() is not None:
                ends[rank] = time.monotonic() - when
        return all(ends[rank] is not None for rank in waited_for)

    _wait_until(are_over, when + job.deadline + GRACE)
    return ends


def _wait_until(is_so: Callable[[], bool], end: float) -> None:
    while not is_so() and time.monotonic() < end:
        time.sleep(POLL)


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text()) if file.exists() else {}


def _raised(folder: Path, rank: int) -> float | None:
    """Seconds from when it happened to the error of a rank."""
    mark, own = _read(folder / "struck"), _read(folder / f"{rank}-raised")
    return own["when"] - mark["when"] if mark and own else None


# the report


def shown(outcomes: Sequence[Outcome]) -> Table:
    table = Table("transport", "kind", *COLUMNS, box=box.MARKDOWN)
    groups = dict.fromkeys((one.job.transport, one.job.kind) for one in outcomes)
    for transport, kind in sorted(groups):
        here = [one for one in outcomes if (one.job.transport, one.job.kind) == (transport, kind)]
        struck = [one for one in here if one.struck]
        slowest = zip(*(one.slowest for one in struck), strict=True) if struck else [[0.0]] * 2
        cells = (
            len(struck),
            sum(one.is_in_time for one in struck),
            sum(one.is_named for one in struck),
            sum(one.left_over for one in struck),
            sum(bool(one.lost) for one in struck),
            *(f"{max(times):.1f}" for times in slowest),
            len(here) - len(struck),
        )
        table.add_row(transport, kind, *map(str, cells))
    return table


def line(one: Outcome) -> str:
    job = one.job
    words = [job.transport, job.schedule, f"{job.ranks} ranks", f"{job.kind} of {job.victim}"]
    words.append(f"in {job.phase} at {one.struck} {job.call}" if one.struck else "NOT STRUCK")
    words.append("error {:.1f} s, end {:.1f} s".format(*one.slowest))
    facts = {"LATE": not one.is_in_time, "NOT NAMED": not one.is_named, "LEFT": one.left_over}
    facts["LOST"] = bool(one.lost)
    wrong = [name for name, is_so in facts.items() if is_so]
    said = [f"\n    {number}: {rank}" for number, rank in enumerate([*one.ranks, one.lost])]
    return "  ".join([*words, *wrong]) + "".join(said if wrong or not one.struck else [])


def saved(arguments: argparse.Namespace, outcomes: Sequence[Outcome]) -> None:
    if arguments.json:
        asked = {name: value for name, value in vars(arguments).items() if name != "json"}
        rows = [
            {
                **one.job._asdict(),
                "struck": one.struck,
                "is_in_time": one.is_in_time,
                "is_named": one.is_named,
                "left_over": one.left_over,
                "lost": one.lost,
                "ranks": [rank._asdict() for rank in one.ranks],
            }
            for one in outcomes
        ]
        document = {"machine": machine(), "arguments": asked, "rows": rows}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--transports", nargs="+", choices=tuple(ON_CPU), default=[*ON_CPU])
    parser.add_argument("--phases", nargs="+", choices=tuple(PHASES), default=[*PHASES])
    parser.add_argument("--kills", type=int, default=30, help="by each transport")
    parser.add_argument("--jobs", type=int, default=4, help="at once")
    parser.add_argument("--deadline", type=float, default=5.0)
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="seconds until a rank is struck"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where the results go")
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        arguments.transports = [*dict.fromkeys(ON_CPU[one] for one in arguments.transports)]
    return arguments


def main(arguments: argparse.Namespace) -> None:
    jobs = [job for transport in arguments.transports for job in jobs_of(arguments, transport)]
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for future in as_completed([pool.submit(outcome, job, arguments) for job in jobs]):
            if (error := future.exception()) is not None:
                print(f"a job failed: {error!r}", flush=True)
                continue
            outcomes.append(future.result())
            print(line(outcomes[-1]), flush=True)
            saved(arguments, outcomes)
    Console(width=None if os.isatty(1) else 160).print(shown(outcomes))


if __name__ == "__main__":
    main(parsed())
