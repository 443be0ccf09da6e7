"""Restarts without a hand: torchrun's elastic agent starts ranks again, and the run goes on.

this test
  └── fork server     has torch and Weft imported, once
        └── agent     torchrun's own: starts the ranks, and all of them again when one dies
              ├── rank 0     `weft train --resume`, and a thread that may kill it
              └── rank 1
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from tests.cli.running import weft
from tests.runtime import ranks
from tests.runtime.ranks import CONTEXT
from weft.cli import main
from weft.cost import Share
from weft.notation import to_json
from weft.runtime.saves import writer
from weft.schedules import one_f_one_b

KILLS, STEPS, RANKS = 10, 26, 2
SECONDS = 240.0  # that all of it gets
PAUSE = 0.0005  # seconds between two looks
PRELOADED = [
    *ranks.PRELOADED,
    "torch.utils.tensorboard",
    "weft.cli.train",
    "weft.web",
]
SIZES = "-d 2 -n 2 --layers 2 --hidden 8 --heads 1 --context 8 --dropout 0.1 --json"
JOB = [*SIZES.split(), "--steps", str(STEPS)]


class Death(NamedTuple):
    """Which rank dies, and when: in its first save, or some time after a step."""

    rank: int
    step: int
    is_saving: bool
    delay: float


def _lines(out: Path) -> int:
    try:
        return (out / "metrics.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def deaths(seed: int) -> list[Death]:
    """One for each start but the last; every third while a save is being written."""
    drawn = random.Random(seed)
    return [
        Death(
            rank=drawn.randrange(RANKS),
            step=2 * index + drawn.randrange(3),
            is_saving=index % 3 == 2,
            delay=drawn.choice([0.0, 0.001, 0.01, 0.05]) * drawn.random(),
        )
        for index in range(KILLS)
    ]


@pytest.mark.timeout(300)
def test_ten_ranks_die_and_the_losses_are_those_of_a_run_that_nobody_disturbed(
    tmp_path: Path,
) -> None:
    out, cost = tmp_path / "run", tmp_path / "cost.json"
    cost.write_text(to_json(Share().cost(one_f_one_b(devices=2, microbatches=2))))
    job = [*JOB, "--cost", str(cost)]
    words = [*job, "--out", str(out), "--save-every", "2", "--keep", "2", "--resume"]
    assert _agent_ends_well(words, deaths(seed=14), out, tmp_path)
    died = {path.name for path in tmp_path.glob("death-*")}
    assert died == {f"death-{index}" for index in range(KILLS)}
    found = json.loads((out / "summary.json").read_text())["losses"]
    assert {"losses": found} == json.loads(weft("train", *job, "--reference").stdout)
    assert _lines(out) == STEPS
    left = sorted(path.name for path in (out / "saves").iterdir())
    assert left == [f"step-{STEPS - 2:06d}", f"step-{STEPS:06d}"]


def _agent_ends_well(words: list[str], plan: list[Death], out: Path, folder: Path) -> bool:
    agent = CONTEXT.Process(target=_agent, args=(words, plan, out, folder))
    agent.start()
    try:
        agent.join(SECONDS)
        assert agent.exitcode == 0, (folder / "said").read_text()
        return True
    finally:
        assert agent.pid is not None
        with suppress(ProcessLookupError):
            os.killpg(agent.pid, signal.SIGKILL)  # and all whom it has started


# in the agent


def _agent(words: list[str], plan: list[Death], out: Path, folder: Path) -> None:
    os.setsid()
    CONTEXT.set_forkserver_preload(PRELOADED)  # of a server of its own
    _write_to(folder / "said")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=RANKS,
        run_id="restarts",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=KILLS,
        monitor_interval=0.02,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs")),
    )
    elastic_launch(config, _rank)(words, plan, out, folder)


def _write_to(path: Path) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)


# in a rank


def _rank(words: list[str], plan: list[Death], out: Path, folder: Path) -> None:
    start, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
    if start < len(plan) and plan[start].rank == rank:
        death, mark = plan[start], folder / f"death-{start}"
        if death.is_saving:  # its tensors are written, or, of the first rank, all but the manifest
            last = "write_manifest" if rank == 0 else "write_part"
            setattr(writer, last, lambda *_: _end(mark))
        else:
            threading.Thread(target=_die, args=(death, out, mark), daemon=True).start()
    try:
        main(["train", *words])
    except SystemExit as end:
        if end.code:
            raise


def _die(death: Death, out: Path, mark: Path) -> None:
    while _lines(out) < death.step:
        time.sleep(PAUSE)
    time.sleep(death.delay)
    _end(mark)


def _end(mark: Path) -> None:
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)
