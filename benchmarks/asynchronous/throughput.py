"""Samples per second against the size of a microbatch, with stages of known duration, measured.

    python benchmarks/asynchronous/throughput.py [--ranks 2 4 8] [--sizes 1 64] [--json FILE]

One pipeline runs, on a process for each rank. Its replicas are accounted for: N of them train N
times the samples, and their all-reduce takes no time. A forward of the 96 layers sleeps 19.2 ms and
0.288 ms more for each sample, a backward twice as long; every stage has its share.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from borrowed import WARM_UP, Row, Watch, estimate, reported, run
from methods import BACKWARD, BY_NAME, METHODS, MICROBATCHES, SIZES, Method, Model, cost, period
from torch import Tensor, nn

import weft
from weft.cost import Share
from weft.ir.kinds import Kind
from weft.runtime.result import Flight, Result

DEVICES = 8  # of all replicas
STEPS = 7
WIDTH = 64  # of a sample
LAYERS = 96


class Setting(NamedTuple):
    """What one row is about; all methods take their turn in its processes."""

    ranks: int
    replicas: int
    size: int

    @property
    def refusal(self) -> str:
        return ""

    @property
    def microbatches(self) -> int:
        return MICROBATCHES * self.ranks

    @property
    def samples(self) -> int:
        """Of an update, on all replicas."""
        return self.replicas * self.microbatches * self.size


# in a rank


class Sleeping(nn.Module):
    """y = x + w, which takes as long as so many layers."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH))
        self._part = Model(layers)

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = _Nap.apply(value, self.weight, self._part.forward(len(value)))
        return out


class _Nap(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: Tensor, weight: Tensor, nap: float) -> Tensor:
        context.nap = BACKWARD * nap
        time.sleep(nap)
        return value + weight

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        time.sleep(context.nap)
        return gradient.clone(), gradient.sum(0), None


def job(setting: Setting, arguments: argparse.Namespace, tell: Watch) -> dict[str, Any]:
    """In a rank: a run of each method."""
    torch.manual_seed(0)
    rows = setting.microbatches * setting.size
    batch, target = torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)
    found = {}
    for name in arguments.methods:
        found[name] = trained(BY_NAME[name], setting, (batch, target), arguments)
        tell()
    return found


def trained(
    method: Method,
    setting: Setting,
    data: tuple[Tensor, Tensor],
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """When each step of a run ended on this rank, and the mean seconds of its F and B."""
    program = method.program(setting.ranks, setting.microbatches)
    stages = [Sleeping(arguments.layers // program.stages) for _ in range(program.stages)]
    pipeline = weft.Pipeline(
        stages,
        program,
        loss=nn.functional.mse_loss,
        optimizer=lambda named: torch.optim.SGD([weight for _, weight in named], lr=1e-3),
        transport=arguments.transport,
    )
    gc.collect()  # of what the last method has left
    dist.barrier()
    ends, results = [], []
    for _ in range(WARM_UP + 1 + arguments.steps):
        results.append(pipeline.step(*data))
        ends.append(time.monotonic())
    flown = [pipeline.drain()] if method.is_asynchronous else results[1:]
    dist.barrier()
    return {"ends": ends, **{kind.name: seconds(flown, kind) for kind in (Kind.F, Kind.B)}}


def seconds(flown: Sequence[Result | Flight], kind: Kind) -> float:
    """Of an action of this process, on average."""
    found = []
    for timeline in (one.timeline for one in flown):
        mine = (timeline.start > 0) & (timeline.program.actions.kind == kind)
        found.append((timeline.end - timeline.start)[mine])
    return float(np.concatenate(found).mean())


# the report


def row(arguments: argparse.Namespace, setting: Setting, watch: Watch) -> Row:
    by_rank = run(job, setting, arguments, watch)
    model = Model(arguments.layers)
    facts = {name: fact(setting, model, name, by_rank) for name in arguments.methods}
    cells = [f"{one['rate'].shown(digits=0)} {one['of ideal']:.3f}" for one in facts.values()]
    return Row(cells, {"samples": setting.samples, "methods": facts})


def fact(
    setting: Setting, model: Model, name: str, by_rank: list[dict[str, Any]]
) -> dict[str, Any]:
    """Throughput, and how it compares with the simulator's.

    ideal     every action takes what it should, and messages take no time
    recorded  every action takes what it did on average
    """
    periods = np.diff(by_rank[0][name]["ends"])[WARM_UP:]
    program = BY_NAME[name].program(setting.ranks, setting.microbatches)
    ideal = period(program, cost(program, model, setting.size))
    forward, backward = (
        BY_NAME[name].stages_per_device * float(np.mean([rank[name][kind] for rank in by_rank]))
        for kind in "FB"
    )
    share = Share(forward=forward, input_grad=backward / 2, weight_grad=backward / 2)
    return {
        "rate": estimate(lambda taken: setting.samples / taken, periods),
        "ideal": setting.samples / ideal,
        "of ideal": ideal / float(np.median(periods)),
        "of recorded": period(program, share.cost(program)) / float(np.median(periods)),
        "periods": periods.tolist(),
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8], help="of a pipeline")
    parser.add_argument("--sizes", type=int, nargs="+", default=[*SIZES], help="of a microbatch")
    parser.add_argument("--methods", nargs="+", default=[method.name for method in METHODS])
    parser.add_argument("--layers", type=int, default=LAYERS, help="of the model")
    parser.add_argument("--steps", type=int, default=STEPS, help="after a warm-up")
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--quick", action="store_true", help="2 ranks, sizes 1 and 64, 3 steps")
    parser.add_argument("--transport", default="auto", help="auto, shared or gloo")
    parser.add_argument("--timeout", type=int, default=120, help="seconds of a row")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.ranks, arguments.sizes, arguments.steps = [2], [1, 64], 3
    return arguments


if __name__ == "__main__":
    given = parsed()
    rows = [
        Setting(ranks, DEVICES // ranks, size) for ranks, size in product(given.ranks, given.sizes)
    ]
    reported(given, given.methods, rows, partial(row, given), rounds=len(given.methods))
