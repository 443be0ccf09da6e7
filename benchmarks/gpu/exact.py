"""Training by ranks that share a GPU, bit for bit that of the reference.

    python benchmarks/gpu/exact.py [--dtype float32] [--transports peer] [--json FILE]
    python benchmarks/gpu/exact.py --ways offload recomputed fp8 compressed replicas sharded
    python benchmarks/gpu/exact.py --device cpu --quick

Each rank trains by its schedule, and by the reference under the same percentage of MPS: how many
multiprocessors there are decides which kernels run. Compared are the losses, the gradients of every
update, and the weights after the last, with dropout, AdamW and clipping.

Ways, all of them in each row: `offload` of all that forwards keep, norms and activation functions
`recomputed`, inputs of linear layers kept in `fp8`, messages `compressed` to FP8, two `replicas` of
half of the ranks, and the same with their optimizer `sharded`; `tied`: the last stage has a weight
of the first, `shared`: it has a whole block of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import torch
from borrowed import Row, Watch, Work, reported
from common import SCHEDULES, Setting, measured, parsed, settings, work_of
from torch import Tensor, nn, optim
from torch.distributed.device_mesh import init_device_mesh

import weft
from weft.errors import WeftError
from weft.ir.program import Program
from weft.lower import replicated
from weft.runtime.weights.staleness import scoped

DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
DROPOUT, CLIP, SEED = 0.1, 0.5, 3
COLUMNS = ("losses", "gradients", "weights", "differ")
TOGETHER = ("tied", "shared")  # what stages have in common
WAYS = ("plain", "offload", "recomputed", "fp8", "compressed", "replicas", "sharded", *TOGETHER)
OPTIONS: dict[str, dict[str, Any]] = {
    "offload": {"offload": "all"},
    "compressed": {"compress": "fp8"},
    "sharded": {"shard_optimizer": True},
}
MARKS: dict[str, tuple[Callable[[Any], Any], tuple[type[nn.Module], ...]]] = {
    "recomputed": (weft.recomputed, (nn.LayerNorm, nn.GELU)),
    "fp8": (weft.stored_in_fp8, (nn.Linear,)),
}
REPLICAS = 2


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
Batches: TypeAlias = Sequence[tuple[Tensor, Tensor]]


def job(setting: Setting, arguments: argparse.Namespace, tell: Watch) -> dict[str, list[str]]:
    """What is compared on this rank, by what it is; what differs has a name."""
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.enable_mem_efficient_sdp(False)  # it has no deterministic backward
    torch.backends.cuda.enable_cudnn_sdp(False)
    found: dict[str, list[str]] = {}
    for way in arguments.ways:
        try:
            made = compared(way, setting, arguments)
        except WeftError as error:  # of all ranks, so that they go on together
            made = {"losses": ["1", str(error)]}
        for what, (count, *names) in made.items():
            before = found.setdefault(what, ["0"])
            before[0] = str(int(before[0]) + int(count))
            before += [f"{name}, {way}" for name in names]
        tell()
    return found


def compared(way: str, setting: Setting, arguments: argparse.Namespace) -> dict[str, list[str]]:
    replicas = REPLICAS if way in ("replicas", "sharded") else 1
    sizes = setting.sizes._replace(ranks=setting.ranks // replicas)
    one = setting._replace(sizes=sizes)  # of a replica
    work = work_of(one, arguments, dropout=DROPOUT)
    steps = arguments.steps + (2 if one.program.period else 0)
    batches = [*drawn(work, steps, replicas)]
    pipeline, losses = by_pipeline(one, work, batches, way, replicas)
    with pipeline:
        wanted = by_reference(replicated(one.program, replicas), work, batches, way)
        return differences(pipeline, losses, wanted, has_own=way not in ("sharded", *TOGETHER))


def stages_of(work: Work, program: Program, way: str) -> list[nn.Module]:
    """The stages, marked, or with something in common."""
    stages = [work.stage(stage) for stage in range(program.stages)]
    mark, kinds = MARKS.get(way, (None, ()))
    for module in chain.from_iterable(stage.modules() for stage in stages):
        if mark and isinstance(module, kinds):
            mark(module)
    first, *_, last = stages
    assert isinstance(first, nn.Sequential)
    assert isinstance(last, nn.Sequential)
    if way == "tied":
        last[0].perceptron[0].weight = first[0].perceptron[0].weight
    if way == "shared":
        last[0] = first[0]
    return stages


def drawn(work: Work, steps: int, replicas: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches like the work's for all replicas, each another one."""
    torch.manual_seed(1)
    for _ in range(steps):
        batch, target = (
            torch.cat([torch.randn_like(data) for _ in range(replicas)])
            for data in (work.batch, work.target)
        )
        yield batch, target


def by_pipeline(
    setting: Setting, work: Work, batches: Batches, way: str, replicas: int
) -> tuple[weft.Pipeline, list[Tensor]]:
    sizes = (replicas, setting.ranks)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "pp")) if replicas > 1 else None
    own = 0 if mesh is None else mesh.get_local_rank("dp")
    pipeline = weft.Pipeline(
        stages_of(work, setting.program, way),
        setting.program,
        mesh=mesh,
        loss=work.loss,
        optimizer=Watched,
        clip=CLIP,
        seed=SEED,
        transport=setting.transport,  # type: ignore[arg-type]
        **OPTIONS.get(way, {}),
    )
    results = [pipeline.step(*(data.chunk(replicas)[own] for data in batch)) for batch in batches]
    if pipeline.is_asynchronous:
        pipeline.drain()
    losses = [result.losses.cpu().sum() for result in results]  # added up where theirs are
    if work.batch.is_cuda:
        torch.cuda.synchronize()  # gradients may have been kept on another stream
    return pipeline, losses


def by_reference(program: Program, work: Work, batches: Batches, way: str) -> Trained:
    stages = stages_of(work, program, way)
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
        compress=OPTIONS.get(way, {}).get("compress"),
    )
    return stages, [reference.step(*batch).cpu() for batch in batches], optimizers


def differences(
    pipeline: weft.Pipeline, losses: Sequence[Tensor], wanted: Trained, *, has_own: bool
) -> dict[str, list[str]]:
    """By what is compared: how much of it, and then what is not equal.

    has_own  whether each stage's optimizer has all of its gradients, and nothing else; shares of
             them the reference has not, and a weight of two stages is in an optimizer of its own
    """
    stages, their_losses, their_optimizers = wanted
    compared: dict[str, dict[str, tuple[Tensor, Tensor]]] = {
        "losses": {
            f"loss {step}": pair for step, pair in enumerate(zip(losses, their_losses, strict=True))
        },
        "gradients": {},
        "weights": {},
    }
    for (pipe, stage), module in pipeline.modules.items():
        theirs = dict(stages[stage].named_parameters())
        for name, weight in module.named_parameters():
            compared["weights"][f"{name} of {_place(pipe, stage)}"] = weight, theirs[name]
    places = zip(pipeline.modules, pipeline.optimizers, strict=True) if has_own else ()
    for (pipe, stage), optimizer in places:
        assert isinstance(optimizer, Watched)
        steps = zip(optimizer.seen, their_optimizers[stage].seen, strict=True)
        for update, (mine, other) in enumerate(steps):
            for index, both in enumerate(zip(mine, other, strict=True)):
                name = f"gradient {index} of {_place(pipe, stage)}, update {update}"
                compared["gradients"][name] = both
    return {
        what: [str(len(found)), *(name for name, pair in found.items() if not torch.equal(*pair))]
        for what, found in compared.items()
    }


def _place(pipe: int, stage: int) -> str:
    return f"stage {stage} of pipe {pipe}"


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
        extra={"--ways": {"nargs": "+", "default": ["plain"], "choices": WAYS}},
    )
    reported(given, COLUMNS, settings(given), partial(row, given), rounds=len(given.ways))
