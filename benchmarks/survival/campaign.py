"""Kills, stops, raises and exits at random moments: do all other ranks say why, and end in time?

    python benchmarks/survival/campaign.py [--cases 100] [--seed 0] [--jobs 2] [--json FILE]
    python benchmarks/survival/campaign.py --only 17           # one case again, by its number
    python benchmarks/survival/campaign.py --report FILE       # the table of all runs in a file

Every case is two to four ranks, forked from one server that has torch and Weft imported. One of
them is struck. From then on the others have the deadline and some seconds; what is left of a case
then is killed. Runs append to the same file, one line for each case.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Condition, Thread
from typing import Any, NamedTuple

import hosts
from cases import MOMENTS, READER, TRANSPORTS, Case, case_of
from leftovers import PRIVATE, left, strays
from tables import shown
from verdicts import Outcome, Rank, row, said

SERVER = Path(__file__).with_name("server.py")
GRACE = 5.0  # seconds after the deadline
TIMEOUT = 90.0  # seconds until a rank is struck, and for the server to answer
POLL = 0.01
PARTING = 2.0  # seconds in which the kernel closes what a process had open


class End(NamedTuple):
    """How a process ended, and when."""

    code: int
    when: float


# the server, as seen from here


class Server:
    """Starts ranks, and knows which have ended; several threads may ask."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, str(SERVER), *words]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._news = Condition()
        self._started: dict[int, int] = {}
        self._requests, self._is_ready = 0, False
        self.ended: dict[int, End] = {}
        Thread(target=self._listen, daemon=True).start()
        self._await(lambda: self._is_ready)

    def start(self, case: Case, rank: int, folder: Path, host: str | None) -> int:
        """The process of a new rank."""
        request = {"case": case._asdict(), "rank": rank, "folder": str(folder), "host": host}
        assert self._process.stdin is not None
        with self._news:
            self._requests += 1
            number = self._requests
            self._process.stdin.write(json.dumps({**request, "request": number}) + "\n")
            self._process.stdin.flush()
        self._await(lambda: number in self._started)
        return self._started.pop(number)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(TIMEOUT)

    def _await(self, is_so: Callable[[], bool]) -> None:
        with self._news:
            if not self._news.wait_for(is_so, TIMEOUT):
                raise RuntimeError("the server of ranks does not answer")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            fact = json.loads(line)
            with self._news:
                if "started" in fact:
                    self._started[fact["request"]] = fact["started"]
                elif "ended" in fact:
                    self.ended[fact["ended"]] = End(fact["code"], fact["when"])
                else:
                    self._is_ready = True
                self._news.notify_all()


@contextmanager
def serving(*words: str) -> Iterator[Server]:
    server = Server(*words)
    try:
        yield server
    finally:
        server.close()


# a case


def outcome(server: Server, case: Case, grace: float, *, is_private: bool) -> Outcome:
    """Run a case to its end, and look at what it has left."""
    with (
        tempfile.TemporaryDirectory(prefix="weft-survival-") as name,
        hosts.made(case.hosts if is_private else 0) as names,
    ):
        folder = Path(name)
        for private in PRIVATE:
            (folder / private).mkdir()
        where = [names[case.host(rank)] if names else None for rank in range(case.ranks)]
        processes = [server.start(case, rank, folder, host) for rank, host in enumerate(where)]
        run = Run(server, case, folder, processes, grace)
        try:
            run.watch()
        finally:
            stacks = run.end()
        _wait_until(lambda: not left(folder, processes, names), time.monotonic() + PARTING)
        return Outcome(
            case,
            struck=run.mark.get("what", ""),
            ranks=run.ranks(),
            seconds=case.deadline + grace,
            left=left(folder, processes, names),
            lost=_lost(server, case, folder) if case.phase == "save" and run.mark else "",
            stacks=stacks,
        )


def _lost(server: Server, case: Case, folder: Path) -> str:
    """Why the last complete save cannot be read."""
    reader = server.start(case, READER, folder, None)
    _wait_until(lambda: reader in server.ended, time.monotonic() + TIMEOUT)
    end = server.ended.pop(reader, None)
    return "" if end and end.code == 0 else said(folder / f"{READER}.txt") or "it takes too long"


class Run:
    """The processes of a case, watched from outside."""

    def __init__(
        self, server: Server, case: Case, folder: Path, processes: Sequence[int], grace: float
    ) -> None:
        self._server, self._case, self._folder = server, case, folder
        self._processes, self._patience = processes, case.deadline + grace
        self.mark: dict[str, Any] = {}
        self._resumed = 0.0
        self._killed: set[int] = set()

    def watch(self) -> None:
        """Until all have ended by themselves, or their time is over."""
        _wait_until(self._is_struck, time.monotonic() + TIMEOUT)
        self.mark = _read(self._folder / "struck")
        if not self.mark:
            return
        others = [*self._processes]
        stopped = others.pop(self._case.victim) if self._case.kind == "stop" else None
        self._wait(others, self.mark["when"])
        if stopped is not None:
            os.kill(stopped, signal.SIGCONT)
            self._resumed = time.monotonic()
            self._wait([stopped], self._resumed)

    def end(self) -> str:
        """Kill what is left; what it was doing."""
        late = [one for one in self._processes if one not in self._server.ended]
        stacks = [self._stack(process) for process in late]
        self._killed.update(late)
        for process in {*late, *strays(self._processes)} if late else ():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        _wait_until(lambda: self._are_over(late), time.monotonic() + TIMEOUT)
        return "\n".join(stacks)

    def ranks(self) -> list[Rank]:
        return [self._rank(rank, process) for rank, process in enumerate(self._processes)]

    def _rank(self, rank: int, process: int) -> Rank:
        own, when = _read(self._folder / f"{rank}-raised"), self.mark.get("when")
        end, words = self._server.ended.pop(process), said(self._folder / f"{rank}.txt")
        if when is None or process in self._killed:
            return Rank(None, None, end.code, words)
        is_stopped = rank == self._case.victim and self._resumed
        began = self._resumed if is_stopped else when
        return Rank(own["when"] - began if own else None, end.when - began, end.code, words)

    def _is_struck(self) -> bool:
        """Whether a rank was struck, or has ended without it; others may end well before that."""
        is_over = self._processes[self._case.victim] in self._server.ended
        return is_over or (self._folder / "struck").exists()

    def _wait(self, processes: Sequence[int], since: float) -> None:
        _wait_until(lambda: self._are_over(processes), since + self._patience)

    def _are_over(self, processes: Sequence[int]) -> bool:
        return all(process in self._server.ended for process in processes)

    def _stack(self, process: int) -> str:
        """What a process is doing now, as its faulthandler writes it."""
        file = self._folder / f"{self._processes.index(process)}.txt"
        before = file.stat().st_size
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGUSR1)
        _wait_until(lambda: file.stat().st_size > before, time.monotonic() + 1.0)
        time.sleep(POLL)
        with file.open(errors="replace") as text:
            text.seek(before)
            return f"rank {self._processes.index(process)}\n{text.read()}"


def _wait_until(is_so: Callable[[], bool], end: float) -> None:
    while not is_so() and time.monotonic() < end:
        time.sleep(POLL)


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text()) if file.exists() else {}


# all cases


def outcomes(
    cases: Sequence[Case], *words: str, jobs: int, is_private: bool, grace: float = GRACE
) -> Iterator[Outcome]:
    """Of each case, as they end; words are for the server."""
    with serving(*words) as server, ThreadPoolExecutor(jobs) as pool:
        futures = [
            pool.submit(outcome, server, case, grace, is_private=is_private) for case in cases
        ]
        for future in as_completed(futures):
            yield future.result()


def line(one: Outcome) -> str:
    words = [str(one.case), f"at {one.struck}" if one.struck else "NOT STRUCK"]
    words.append("error {:.1f} s, end {:.1f} s".format(*one.slowest))
    facts = {"LATE": not one.is_in_time, "NOT NAMED": not one.is_named, "LEFT": one.left}
    facts["LOST"] = bool(one.lost)
    wrong = [name for name, is_so in facts.items() if is_so]
    details = [f"\n    {number}: {rank}" for number, rank in enumerate(one.ranks)]
    details += [f"\n    {what}" for what in (*one.left, one.lost)]
    return "  ".join([*words, *wrong]) + "".join([] if one.is_good else [*details, one.stacks])


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="+", help="the numbers of cases of this seed")
    parser.add_argument("--transports", nargs="+", choices=TRANSPORTS, default=[*TRANSPORTS])
    parser.add_argument("--phases", nargs="+", choices=tuple(MOMENTS), default=[*MOMENTS])
    parser.add_argument("--jobs", type=int, default=2, help="at once")
    parser.add_argument("--deadline", type=float, default=4.0, help="seconds")
    parser.add_argument("--json", type=Path, help="a file that gets a line for each case")
    parser.add_argument("--report", type=Path, help="only the table of such a file")
    return parser.parse_args()


def main(arguments: argparse.Namespace) -> None:
    if arguments.report:
        rows = [json.loads(text) for text in arguments.report.read_text().splitlines()]
        print(shown(rows))
        return
    is_private = hosts.are_allowed()
    if not is_private:
        print("without network namespaces: no two hosts, and sockets are not looked at")
        arguments.transports = [one for one in arguments.transports if one != "hosts"]
    numbers = arguments.only or range(arguments.cases)
    asked = arguments.transports, arguments.phases, arguments.deadline
    cases = [case_of(arguments.seed, one, *asked) for one in numbers]
    rows = []
    for one in outcomes(cases, jobs=arguments.jobs, is_private=is_private):
        print(line(one), flush=True)
        rows.append(row(one))
        if arguments.json:
            with arguments.json.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    print(shown(rows))


if __name__ == "__main__":
    main(parsed())
