"""Two hosts and a slow link: what overlap and compression buy, beside torch.

    python benchmarks/network/run.py [--rates 200 500 1000 4000] [--json FILE]

A rank in each of two network namespaces, whose link has a rate in megabits a second and direction.
Stages sleep 5 ms in F and 10 ms in B, and hand on 1 MiB for each microbatch. Torch and Weft take
turns, step by step, in the same processes.
"""

from __future__ import annotations

import argparse
import datetime
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from borrowed import (
    Contender,
    Row,
    Samples,
    Setting,
    Sleeping,
    Turn,
    Watch,
    Work,
    both,
    estimate,
    hurry,
    median,
    meet,
    reported,
    rounds,
    run,
    step_seconds,
    timed,
)
from link import FIRST, enter, slow_link
from torch import nn

import weft
from weft.cost import Cost, Link, Memory, Network, Times
from weft.ir.kinds import Direction
from weft.lower import executable
from weft.runtime.compression import DTYPES
from weft.runtime.transport.compressed import packed, unpacked
from weft.schedules import REGISTRY, Shape
from weft.simulate import simulate

PORT = 29533
RATES, STEPS, MICROBATCHES = (200.0, 500.0, 1000.0, 4000.0), 15, 8
FORM = (4096, 64)  # of a microbatch
BYTES = 4 * FORM[0] * FORM[1]
GOODPUT = 1448 / 1514  # of a wire's bytes, those that are payload
SHRUNK = {None: 1.0, "bf16": 0.5, "fp16": 0.5, "fp8": 0.25}  # of the bytes of float32

COLUMNS = ("step ms", "simulated ms", "nothing overlapped ms", "torch / step")

WEFT = {  # what a contender is called: its schedule, and in what it compresses
    "1f1b": ("1f1b", None),
    "1f1b bf16": ("1f1b", "bf16"),
    "1f1b fp8": ("1f1b", "fp8"),
    "eager-1f1b": ("eager-1f1b", None),
    "eager-1f1b bf16": ("eager-1f1b", "bf16"),
    "eager-1f1b fp16": ("eager-1f1b", "fp16"),
    "eager-1f1b fp8": ("eager-1f1b", "fp8"),
}
TORCH = "torch 1f1b"
BACK = Direction.GRADIENT
COMPRESSED = [*DTYPES]  # formats and directions


class OnLink(NamedTuple):
    """A row: the rate of a link, and who runs over it."""

    megabits: float
    contender: str

    @property
    def ranks(self) -> int:
        return 2

    @property
    def refusal(self) -> str:
        return ""

    @property
    def asked(self) -> tuple[str, str | None]:
        """The schedule, and in what messages travel."""
        return WEFT.get(self.contender, ("1f1b", None))


def program_of(schedule: str) -> Any:
    return REGISTRY[schedule].program(Shape(devices=2, microbatches=MICROBATCHES))


def job(setting: OnLink, arguments: argparse.Namespace, tell: Watch) -> dict[str, Any]:
    """In a rank: torch and all of Weft's, in turn."""
    work = Work.random(Sleeping, MICROBATCHES, *FORM)
    checked = both(Setting("1f1b", 2, MICROBATCHES), work, "gloo")
    turns: dict[str, Turn] = {TORCH: checked["torch"], "1f1b": checked["weft"]}
    for name in list(WEFT)[1:]:
        turns[name] = partial(timed, _compressed(work, *WEFT[name]))
    turns["alone"] = partial(alone, work, work.stage(dist.get_rank()))
    return rounds(turns, arguments.steps, tell)


def _compressed(work: Work, schedule: str, compress: Any) -> Contender:
    program = program_of(schedule)
    stages = [work.stage(stage) for stage in range(program.stages)]
    pipeline = weft.Pipeline(stages, program, loss=work.loss, compress=compress)
    step = partial(pipeline.step, work.batch, work.target, update=False)
    return Contender(step, pipeline.modules)


def opening(
    names: Any, rank: int, _store: str, setting: OnLink, arguments: argparse.Namespace
) -> None:
    """Make this process the rank of one end of the link."""
    hurry()
    enter(names[rank])
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{FIRST}:{PORT}",
        rank=rank,
        world_size=setting.ranks,
        timeout=datetime.timedelta(seconds=arguments.timeout),
    )


def alone(work: Work, stage: nn.Module) -> list[float]:
    """Seconds of F and of B of this rank's stage; then of what compresses beside each, by format.

    Both ranks at once, with no messages.
    """
    meet()
    is_first = dist.get_rank() == 0
    value, target = work.batch[: FORM[0]].clone(), work.target[: FORM[0]]
    value.requires_grad_(not is_first)
    marks = [time.monotonic()]
    out = stage(value) if is_first else work.loss(stage(value), target)
    marks.append(time.monotonic())
    torch.autograd.backward(out, target if is_first else None)
    marks.append(time.monotonic())
    for compress, direction in COMPRESSED:
        dtype = DTYPES[compress, direction]
        content = packed([target], dtype) if (direction is BACK) is is_first else None
        start = time.monotonic()
        unpacked(content, dtype) if content else packed([target], dtype)
        marks.append(marks[-1] + time.monotonic() - start)
    return np.diff(marks).tolist()


def simulated(setting: OnLink, seconds: Samples, *, is_overlapped: bool) -> float:
    """What a step takes, by what stages and link take; `seconds` of `alone`, by rank.

    Where nothing overlaps, a rank computes nothing while its message is under way.
    """
    schedule, compress = setting.asked
    size, bandwidth = BYTES * SHRUNK[compress], setting.megabits * 1e6 / 8 * GOODPUT
    forward, backward = seconds[:, 0], seconds[:, 1]
    for place, (asked, direction) in enumerate(COMPRESSED, start=2):
        if asked == compress:
            forward = forward + seconds[:, place] * (direction is not BACK)
            backward = backward + seconds[:, place] * (direction is BACK)
    if not is_overlapped:
        sent = size / bandwidth
        forward, backward = forward + np.array([sent, 0]), backward + np.array([0, sent])
    none = (0.0, 0.0)
    cost = Cost(
        times=Times(tuple(forward), none, tuple(backward), none, none, none),
        memory=Memory(none, none, none, none, none),
        network=Network(size, Link(0.0, bandwidth)) if is_overlapped else Network(0.0),
    )
    return float(simulate(executable(program_of(schedule)), cost).makespan)


class Measured:
    """The steps of all contenders over a link: measured once, in turn, for all of its rows."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments, self._steps = arguments, dict[float, dict[str, Samples]]()
        self._alone: dict[float, Samples] = {}

    def row(self, setting: OnLink, watch: Watch) -> Row:
        if setting.megabits not in self._steps:
            with slow_link(setting.megabits) as names:
                by_rank = run(job, setting, self._arguments, watch, partial(opening, names))
            found = {name: step_seconds(by_rank, name) for name in (TORCH, *WEFT)}
            self._steps[setting.megabits] = found
            every = np.array([one["alone"] for one in by_rank])
            self._alone[setting.megabits] = np.median(every, axis=1)
        steps = self._steps[setting.megabits]
        taken = steps[setting.contender]
        faster = estimate(lambda one, other: one / other, steps[TORCH], taken)
        seconds = self._alone[setting.megabits]
        predicted, serial = (
            simulated(setting, seconds, is_overlapped=one) for one in (True, False)
        )
        facts = {
            "steps": taken.tolist(),
            "simulated": predicted,
            "nothing overlapped": serial,
            "alone": seconds.tolist(),
            "faster": faster,
        }
        numbers = [f"{1e3 * seconds:.0f}" for seconds in (predicted, serial)]
        return Row([median(taken).shown(1e3, 0), *numbers, faster.shown()], facts)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="Mbit/s")
    parser.add_argument("--steps", type=int, default=STEPS, help="of each, after a warm-up")
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--timeout", type=int, default=300, help="seconds of a row")
    return parser.parse_args()


if __name__ == "__main__":
    given = parsed()
    links = [OnLink(rate, name) for rate in given.rates for name in (TORCH, *WEFT)]
    reported(given, COLUMNS, links, Measured(given).row)
