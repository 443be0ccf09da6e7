"""Training by ranks that share a GPU, bit for bit that of the reference.

    python benchmarks/gpu/exact.py [--dtype float32] [--transports peer] [--json FILE]
    python benchmarks/gpu/exact.py --device cpu --quick

Each rank trains by its schedule, and by the reference under the same percentage of MPS: how many
multiprocessors there are decides which kernels run. Compared are the losses, the gradients of every
update, and the weights after the last, with dropout, AdamW and clipping.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from borrowed import Row, Watch, Work, reported
from common import SCHEDULES, Setting, measured, parsed, settings, work_of
from torch import Tensor, nn, optim

import weft
from weft.ir.program import Program
from weft.runtime.weights.staleness import scoped

DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
DROPOUT, CLIP, SEED = 0.1, 0.5, 3
COLUMNS = ("losses", "gradients", "weights", "differ")


class Watched(optim.AdamW):
    """Keeps the gradients of every step."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        super().__init__([weight for _, weight in named], lr=1e-3)
        self.seen: list[list[Tensor]] = []

    def step(self, closure: Any = None) -> Any:
        (group,) = self.param_groups
        self.seen.append([weight.grad.clone() for weight in group["params"]])
        return super().step(closure)


# in a rank

Trained: TypeAlias = tuple[Sequence[nn.Module], list[Tensor], list[Watched]]  # stages, losses


def job(setting: Setting, arguments: argparse.Namespace, tell: Watch) -> dict[str, list[str]]:
    """What is compared on this rank, by what it is; what differs has a name."""
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.enable_mem_efficient_sdp(False)  # it has no deterministic backward
    torch.backends.cuda.enable_cudnn_sdp(False)
    work, program = work_of(setting, arguments, dropout=DROPOUT), setting.program
    batches = [*drawn(work, arguments.steps + (2 if program.period else 0))]
    pipeline, losses = by_pipeline(setting, work, batches)
    tell()
    wanted = by_reference(program, work, batches)
    tell()
    return differences(pipeline, losses, wanted)


def drawn(work: Work, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches like the work's, each another one."""
    torch.manual_seed(1)
    for _ in range(steps):
        yield torch.randn_like(work.batch), torch.randn_like(work.target)


def by_pipeline(
    setting: Setting, work: Work, batches: Sequence[tuple[Tensor, Tensor]]
) -> tuple[weft.Pipeline, list[Tensor]]:
    pipeline = weft.Pipeline(
        [work.stage(stage) for stage in range(setting.program.stages)],
        setting.program,
        loss=work.loss,
        optimizer=Watched,
        clip=CLIP,
        seed=SEED,
        transport=setting.transport,  # type: ignore[arg-type]
    )
    results = [pipeline.step(*batch) for batch in batches]
    if pipeline.is_asynchronous:
        pipeline.drain()
    losses = [result.losses.cpu().sum() for result in results]  # added up where theirs are
    if work.batch.is_cuda:
        torch.cuda.synchronize()  # gradients may have been kept on another stream
    return pipeline, losses


def by_reference(program: Program, work: Work, batches: Sequence[tuple[Tensor, Tensor]]) -> Trained:
    stages = [work.stage(stage) for stage in range(program.stages)]
    optimizers: list[Watched] = []

    def watched(named: Iterable[tuple[str, nn.Parameter]]) -> Watched:
        optimizers.append(Watched(named))
        return optimizers[-1]

    reference = weft.Reference(
        stages,
        program,
        loss=work.loss,
        optimizer=watched,
        clip=CLIP,
        groups=scoped(program, None),
        seed=SEED,
    )
    return stages, [reference.step(*batch).cpu() for batch in batches], optimizers


def differences(
    pipeline: weft.Pipeline, losses: Sequence[Tensor], wanted: Trained
) -> dict[str, list[str]]:
    """By what is compared: how much of it, and then what is not equal."""
    stages, their_losses, their_optimizers = wanted
    compared: dict[str, dict[str, tuple[Tensor, Tensor]]] = {
        "losses": {
            f"loss {step}": pair for step, pair in enumerate(zip(losses, their_losses, strict=True))
        },
        "gradients": {},
        "weights": {},
    }
    pairs = zip(pipeline.modules.items(), pipeline.optimizers, strict=True)
    for ((pipe, stage), module), optimizer in pairs:
        place = f"stage {stage} of pipe {pipe}"
        theirs = dict(stages[stage].named_parameters())
        for name, weight in module.named_parameters():
            compared["weights"][f"{name} of {place}"] = weight, theirs[name]
        assert isinstance(optimizer, Watched)
        steps = zip(optimizer.seen, their_optimizers[stage].seen, strict=True)
        for update, (mine, other) in enumerate(steps):
            for index, both in enumerate(zip(mine, other, strict=True)):
                compared["gradients"][f"gradient {index} of {place}, update {update}"] = both
    return {
        what: [str(len(found)), *(name for name, pair in found.items() if not torch.equal(*pair))]
        for what, found in compared.items()
    }


# the report


def row(arguments: argparse.Namespace, setting: Setting, watch: Watch) -> Row:
    by_rank = measured(job, setting, arguments, watch, **DETERMINISTIC)
    compared = {what: sum(int(rank[what][0]) for rank in by_rank) for what in by_rank[0]}
    unequal = {what: [name for rank in by_rank for name in rank[what][1:]] for what in compared}
    cells = [f"{count - len(unequal[what])} / {count}" for what, count in compared.items()]
    first = [name for names in unequal.values() for name in names][:3]
    return Row([*cells, "; ".join(first) or "none"], {"compared": compared, "unequal": unequal})


if __name__ == "__main__":
    given = parsed(
        __doc__,
        schedules=(*SCHEDULES, "chimera"),
        transports=["peer", "nccl"],
        hidden=[512],
        rows=2,
        context=128,
        microbatches=8,
        steps=4,
    )
    reported(given, COLUMNS, settings(given), partial(row, given), rounds=2)
