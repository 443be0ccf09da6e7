"""Plans as predicted, and as they run: whether the order of their predictions is the true one.

    python benchmarks/plan/truth.py                         # layers that sleep, 4 ranks
    python benchmarks/plan/truth.py --real                  # GPT blocks, 2 ranks on 2 cores
    python benchmarks/plan/truth.py --accelerator cuda      # GPT blocks, 4 ranks on one GPU by MPS

Blocks are measured for each size of a microbatch, or known; the cost of a plan is their sum. Plans
are chosen evenly over predicted time, and train the same batch, in the same processes, in several
passes, in each of which blocks are measured and every plan takes some steps.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import naps
import numpy as np
import torch
import torch.distributed as dist
from candidates import Candidate, Work, averaged, candidates, spread
from ranks_of import Watch, finished, heads_of, machine, measured, meet, run
from torch import Tensor, nn, optim
from torch.nn import functional

from weft.cost import Cost
from weft.ir.kinds import Kind
from weft.models import gpt
from weft.request import Plan
from weft.runtime import Pipeline
from weft.runtime.profile import Effort, Sample, profiled
from weft.schedules import interleaved_1f1b

CLOSE = 0.03  # of a step: two plans that are no further apart are as good as each other
TAU, NEAR = 0.9, 0.03  # the least that is wanted, and by how much the best may miss the fastest
MOST = 2.2  # times the best plan's step, of the slowest that is run
WARM_UP = 2
KINDS = frozenset((Kind.F, Kind.B, Kind.I, Kind.W, Kind.R))


class Setting(NamedTuple):
    """What is run, on what."""

    work: Work
    layers: int
    is_real: bool
    transport: str = "auto"
    hidden: int = 0
    context: int = 0
    vocabulary: int = 0
    dtype: str = "float32"

    @property
    def ranks(self) -> int:
        return self.work.ranks


SETTINGS = {
    "sleeping": Setting(Work(ranks=4, rows=32, replicas=(1, 2)), layers=14, is_real=False),
    "real": Setting(
        Work(ranks=2, rows=16), layers=6, is_real=True, hidden=192, context=192, vocabulary=512
    ),
    "cuda": Setting(
        Work(ranks=4, rows=32),
        layers=10,
        is_real=True,
        transport="peer",
        hidden=2048,
        context=1024,
        vocabulary=8192,
        dtype="bfloat16",
    ),
}


# in a rank


def job(setting: Setting, arguments: argparse.Namespace, tell: Watch) -> dict[str, Any]:
    """For each plan, what was predicted, and when each of its steps began and ended here."""
    here, sizes = _here(arguments), setting.work.sizes
    measure = _measured_blocks if setting.is_real else _known_blocks
    costs: dict[int, list[Cost]] = {rows: [] for rows in sizes}
    chosen: list[Candidate] = []
    steps: list[list[tuple[float, float]]] = []
    for _ in range(arguments.passes):
        for rows in sizes:
            costs[rows].append(measure(setting, here, rows))
        if not chosen:
            chosen = _chosen(setting, arguments, {rows: found[0] for rows, found in costs.items()})
            steps = [[] for _ in chosen]
        for one, taken in zip(chosen, steps, strict=True):
            plan = one.plan(costs[one.choice.rows][-1])
            taken += _steps(setting, plan, here, arguments.steps)
            tell()
    means = {rows: averaged(found) for rows, found in costs.items()}
    return {
        "plans": [str(one.choice) for one in chosen],
        "predicted": [one.seconds(means[one.choice.rows]) for one in chosen],
        "steps": steps,
    }


def _chosen(
    setting: Setting, arguments: argparse.Namespace, blocks: Mapping[int, Cost]
) -> list[Candidate]:
    """The plans to run, the same on all ranks."""
    found = [one for one in candidates(setting.work, blocks) if arguments.only in str(one.choice)]
    told: list[Any] = [spread(found, blocks, min(arguments.plans, len(found)), MOST)]
    dist.broadcast_object_list(told)
    return told[0]  # type: ignore[no-any-return]


def _here(arguments: argparse.Namespace) -> torch.device:
    if arguments.accelerator == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _steps(
    setting: Setting, plan: Plan, here: torch.device, steps: int
) -> list[tuple[float, float]]:
    """When each step of a plan began and ended here, after a warm-up."""
    batch, target = _data(setting, setting.work.rows // plan.layout.replicas, here)
    pipeline = Pipeline.from_plan(
        _model(setting, here),
        plan,
        loss=_loss if setting.is_real else functional.mse_loss,
        optimizer=_descent,
        transport=setting.transport,
        nonfinite="ignore",
    )
    step = finished(partial(pipeline.step, batch, target), here)
    found = []
    for index in range(WARM_UP + steps):
        meet()
        start = time.monotonic()
        step()
        found.append((start, time.monotonic()) if index >= WARM_UP else (0.0, 0.0))
    pipeline.close()
    del pipeline, step
    gc.collect()  # before there is another
    return found[WARM_UP:]


def _model(setting: Setting, here: torch.device) -> nn.Sequential:
    torch.manual_seed(0)
    if not setting.is_real:
        return naps.model(setting.layers)
    with here:
        made = gpt(
            setting.vocabulary,
            layers=setting.layers,
            hidden=setting.hidden,
            heads=heads_of(setting.hidden),
            context=setting.context,
        )
    return made.to(getattr(torch, setting.dtype))


def _data(setting: Setting, rows: int, here: torch.device) -> tuple[Tensor, Tensor]:
    if not setting.is_real:
        return naps.batch(rows)
    torch.manual_seed(1)
    words = torch.randint(setting.vocabulary, (2, rows, setting.context), device=here)
    return words[0], words[1]


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def _descent(named: Iterable[tuple[str, nn.Parameter]]) -> optim.Optimizer:
    return optim.SGD([weight for _, weight in named], lr=1e-6)


# what blocks cost


def _known_blocks(setting: Setting, here: torch.device, rows: int) -> Cost:
    """As they are made, and as late as they are on average here."""
    own = naps.lateness()
    late = torch.tensor([*own.values()])
    dist.all_reduce(late)
    mean = dict(zip(own, (late / setting.ranks).tolist(), strict=True))
    return naps.blocks_cost(setting.layers, rows, mean)


def _measured_blocks(setting: Setting, here: torch.device, rows: int) -> Cost:
    """Every block as a stage of its own, all ranks at work."""
    model, blocks = _model(setting, here), setting.layers + 2
    program = interleaved_1f1b(
        devices=setting.ranks,
        microbatches=2 * setting.ranks,
        stages_per_device=blocks // setting.ranks,
    )
    batch, target = _data(setting, rows, here)
    sample = Sample(batch, target, _loss, _descent)
    effort = Effort(KINDS, rounds=8, sizes=(65_536, 4_194_304), pings=8, steps=4)
    effort = replace(effort, transport=setting.transport)
    return profiled([*model.children()], program, sample, effort)


# the verdict


class Verdict(NamedTuple):
    """How true the predictions were.

    tau       of pairs whose measured steps are further apart than CLOSE
    foreseen  the same, of pairs whose predicted steps are
    best      how much longer the plan predicted best takes than the fastest
    """

    tau: float
    foreseen: float
    best: float

    @property
    def is_met(self) -> bool:
        return self.tau >= TAU and self.best <= NEAR


def verdict(predicted: Sequence[float], found: Sequence[float]) -> Verdict:
    fastest = min(found)
    chosen = found[int(np.argmin(predicted))]
    return Verdict(
        kendall(predicted, found, apart=found),
        kendall(predicted, found, apart=predicted),
        chosen / fastest - 1,
    )


def kendall(one: Sequence[float], other: Sequence[float], *, apart: Sequence[float]) -> float:
    """Kendall's tau of the pairs that are apart: 1 where both order them alike, -1 never."""
    signs = [
        np.sign((one[i] - one[j]) * (other[i] - other[j]))
        for i, j in combinations(range(len(one)), 2)
        if abs(apart[i] - apart[j]) > CLOSE * min(apart[i], apart[j])
    ]
    return float(np.mean(signs)) if signs else 1.0


def seconds_of(by_rank: Sequence[Mapping[str, Any]]) -> list[float]:
    """The median step of each plan, from the first rank's start to the last one's end."""
    starts, ends = (
        np.array([[[step[end] for step in plan] for plan in rank["steps"]] for rank in by_rank])
        for end in (0, 1)
    )
    return np.median(ends.max(0) - starts.min(0), axis=1).tolist()


# the report


def reported(name: str, setting: Setting, arguments: argparse.Namespace) -> bool:
    began = time.monotonic()
    by_rank = _run(setting, arguments)
    predicted, found = by_rank[0]["predicted"], seconds_of(by_rank)
    result = verdict(predicted, found)
    rows = [*zip(by_rank[0]["plans"], predicted, found, strict=True)]
    rows.sort(key=lambda row: row[1])
    if not arguments.is_terse:
        print("| plan | predicted ms | measured ms | predicted / measured |\n|---|---|---|---|")
        for choice, wanted, taken in rows:
            print(f"| {choice} | {1e3 * wanted:.1f} | {1e3 * taken:.1f} | {wanted / taken:.3f} |")
    facts = {
        "benchmark": "plan/truth",
        "of": name,
        "plans": len(rows),
        **{key: round(value, 4) for key, value in result._asdict().items()},
        "is_met": result.is_met,
        "seconds": round(time.monotonic() - began, 1),
        "rows": [(str(choice), round(one, 6), round(other, 6)) for choice, one, other in rows],
        "machine": machine(),
    }
    print(json.dumps(facts))
    if arguments.json:
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n")
    return result.is_met


def _run(setting: Setting, arguments: argparse.Namespace) -> list[Any]:
    count = arguments.plans * arguments.passes
    told = iter(range(1, count + 1))

    def watch() -> None:
        print(f"\r{next(told, count)} of {count} plans", end="", file=sys.stderr, flush=True)

    if arguments.accelerator == "cuda":
        return measured(job, setting, arguments, watch)  # type: ignore[arg-type]
    return run(job, setting, arguments, watch)  # type: ignore[arg-type]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--real", action="store_true", help="GPT blocks on this machine's cores")
    parser.add_argument("--accelerator", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--plans", type=int, default=14, help="how many")
    parser.add_argument("--only", default="", help="plans with this in their names")
    parser.add_argument("--steps", type=int, default=3, help="of each plan in a pass")
    parser.add_argument("--passes", type=int, help="through all plans (default: 4; on a GPU 1)")
    parser.add_argument("--share", type=int, default=25, help="%% of a GPU for a rank; 0: no MPS")
    parser.add_argument("--timeout", type=int, default=900, help="seconds of everything")
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--terse", dest="is_terse", action="store_true", help="one line of JSON")
    arguments = parser.parse_args()
    arguments.device = arguments.accelerator  # as other benchmarks call it
    arguments.passes = arguments.passes or (1 if arguments.accelerator == "cuda" else 4)
    return arguments


if __name__ == "__main__":
    given = parsed()
    which = "cuda" if given.accelerator == "cuda" else "real" if given.real else "sleeping"
    sys.exit(0 if reported(which, SETTINGS[which], given) else 1)
