"""What forwards keep, on the host until it is needed: the time of a step, and memory.

    python benchmarks/gpu/offload.py [--hidden 2048 4096 6144] [--json FILE]
    python benchmarks/gpu/offload.py --device cpu --quick

1f1b on four devices with 16 microbatches of 1 x 4096, GPT blocks in bfloat16, no update. Each
contender runs alone, the first of them once more at the end, so that a drift would show:

none         everything stays on the device
all          `Pipeline(offload="all", cost=...)`, with times and bytes that were measured before
auto         the same with `offload="auto"`: as much as the link has time for
lean         all, with norms and activation functions recomputed (`weft.recomputed`)
save_on_cpu  torch.autograd.graph.save_on_cpu(pin_memory=True) around the stage: one step, since it
             takes several times as long

alone  the first rank has the GPU to itself, and its link to the host; on the others nothing but
       time passes, as much as on the first
ranks  all ranks have a part of the GPU by MPS, and share the link

Memory is that of the first device: the peak of a step over what is there between two of them. What
is gone of it is given as a share of what forwards keep there without offload, and of the peak.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from borrowed import Contender, Row, Watch, finished, median, meet, reported, timed
from common import DTYPES, Setting, heads_of, here, measured, parsed, settings
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu

import weft
from weft.cost import Cost, Link, Memory, Network, Times
from weft.errors import WeftError
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.models.gpt import Attention, Block
from weft.runtime.device.link import linked

TURNS = ("none", "all", "auto", "lean", "save_on_cpu", "none again")
OFFLOADED = {"all": "all", "auto": "auto", "lean": "all"}
AMONG = TURNS[1:-1]  # whose memory is compared with that of none
SETTLING = 2  # steps before the peak of memory
TRIES = 10  # of which the second half counts: clocks fall as a GPU gets warm
GB = 1e9
COLUMNS = (
    "where",
    "none ms",
    "a forward",
    *(f"{name} / none" for name in TURNS[1:]),
    "peak, none GB",
    *(f"{name} GB" for name in AMONG),
    *(f"gone, {name}: of kept, of peak %" for name in AMONG),
)


# stages: every half of a block is a layer that leaves by itself


class Attending(nn.Module):
    """The first half of a block."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(hidden), Attention(hidden, heads_of(hidden))

    def forward(self, value: Tensor) -> Tensor:
        attended: Tensor = value + self.attention(self.norm(value))
        return attended


class Perceiving(nn.Module):
    """The other half."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.perceptron = Block(hidden, heads_of(hidden), 0.0).perceptron

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = value + self.perceptron(value)
        return out


class Passing(nn.Module):
    """A stage in which nothing but time passes: the host sleeps once its device has the input.

    A kernel that waits would count the cycles of a clock that falls as the first rank computes.
    """

    def __init__(self, forward: float, backward: float) -> None:
        super().__init__()
        self._seconds = forward, backward

    def forward(self, value: Tensor) -> Any:
        return _Passed.apply(value, *self._seconds)  # type: ignore[no-untyped-call]


class _Passed(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: Tensor, forward: float, backward: float) -> Tensor:
        context.backward_seconds = backward
        pass_time(forward, value)
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        pass_time(context.backward_seconds, gradients[0])
        return gradients[0], None, None


def pass_time(seconds: float, value: Tensor) -> None:
    if value.is_cuda:
        torch.cuda.current_stream(value.device).synchronize()
    time.sleep(seconds)


class OnHost(nn.Module):
    """A stage as torch offloads it."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, value: Tensor) -> Any:
        with save_on_cpu(pin_memory=value.is_cuda):
            return self.stage(value)


def stage_of(setting: Setting, arguments: argparse.Namespace, name: str) -> nn.Module:
    halves = [
        half(setting.hidden) for _ in range(setting.layers) for half in (Attending, Perceiving)
    ]
    stage = nn.Sequential(*halves).to(DTYPES[arguments.dtype])
    if name == "lean":
        for module in stage.modules():
            if isinstance(module, nn.LayerNorm | nn.GELU):
                weft.recomputed(module)
    return OnHost(stage) if name == "save_on_cpu" else stage


# in a rank


class Alone(Setting):
    """A row whose first device has a GPU to itself."""


def job(setting: Setting, arguments: argparse.Namespace, tell: Watch) -> dict[str, Any]:
    """Steps and the most memory of every contender, one after the other."""
    device = here(arguments)
    form = (setting.microbatches * setting.sizes.rows, setting.sizes.context, setting.hidden)
    torch.manual_seed(0)
    batch, target = (torch.randn(form, device=device).to(DTYPES[arguments.dtype]) for _ in range(2))
    found: dict[str, Any] = {}
    given = batch.chunk(setting.microbatches)[0]
    costs = {name: cost_at(setting, arguments, name, given) for name in ("none", "lean")}
    for name in arguments.turns:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        cost = costs["lean" if name == "lean" else "none"]
        with suppress(RuntimeError, WeftError):  # the others go on; its columns stay empty
            found[name] = contender_of(setting, arguments, name, cost, (batch, target))
        tell()
    found["times"] = {
        name: (one.times.forward[0], one.memory.saved[0]) for name, one in costs.items()
    }
    return found


def cost_at(setting: Setting, arguments: argparse.Namespace, name: str, given: Tensor) -> Cost:
    """What a stage costs each rank, all at work; or the first, alone."""
    is_idle = isinstance(setting, Alone) and dist.get_rank() > 0
    if is_idle:
        for _ in range(1 + TRIES):
            meet()
        told: list[Any] = [None]
    else:
        with given.device:
            stage = stage_of(setting, arguments, name)
        told = [cost_of(stage, given, setting.program, dropped=name == "lean")]
    if isinstance(setting, Alone):  # whose link nobody else uses; the others keep nothing
        told = [one and linked(first_alone(one), given.device, _alone) for one in told]
        dist.broadcast_object_list(told)
    return told[0]  # type: ignore[no-any-return]


def _alone(share: bytes, what: str) -> list[bytes]:
    """What all know who measure the link."""
    return [share]


def first_alone(cost: Cost) -> Cost:
    """The same where only the first stage keeps something."""
    first, *others = cost.memory.saved
    return replace(cost, memory=replace(cost.memory, saved=(first, *(0.0 for _ in others))))


def contender_of(
    setting: Setting,
    arguments: argparse.Namespace,
    name: str,
    cost: Cost,
    data: tuple[Tensor, Tensor],
) -> dict[str, Any]:
    device, program = here(arguments), setting.program
    real = partial(stage_of, setting, arguments, name.removesuffix(" again"))
    forward, backward = cost.times.forward[0], 2 * cost.times.input_grad[0]
    passing = partial(Passing, forward, backward)
    is_alone = isinstance(setting, Alone)
    stages: Sequence[Any] = [
        passing if is_alone and stage else real for stage in range(program.stages)
    ]
    with device:  # where functions make their weights
        pipeline = weft.Pipeline(
            stages,
            program,
            loss=nn.functional.mse_loss,
            nonfinite="ignore",  # which waits for no loss
            transport=setting.transport,  # type: ignore[arg-type]
            offload=OFFLOADED.get(name, "none"),  # type: ignore[arg-type]
            cost=cost,
        )
    with pipeline:
        step = partial(pipeline.step, *data, update=False)
        contender = Contender(finished(step, device), pipeline.modules)
        once = name == "save_on_cpu"
        for _ in range(1 if once else SETTLING):
            timed(contender)
        idle = allocated(arguments)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        clocks = [timed(contender)]
        found: dict[str, Any] = {"kept": most(arguments) - idle}
        clocks += [timed(contender) for _ in range(0 if once else arguments.steps)]
        found |= {"clocks": clocks, "share": offloaded(pipeline.program)}
    return found


def cost_of(stage: nn.Module, given: Tensor, program: Program, *, dropped: bool) -> Cost:
    """Seconds and bytes of a stage, all ranks at work; how fast the link is, a pipeline finds.

    Marks work in a pipeline alone: what recomputed modules return is `dropped` by counting it.
    """
    returned: list[int] = []
    hooks = [
        module.register_forward_hook(lambda module, given, out: returned.append(out.nbytes))
        for module in stage.modules()
        if dropped and isinstance(module, nn.LayerNorm | nn.GELU)
    ]
    clocks: list[tuple[float, float]] = []
    saved = 0
    for _ in range(1 + TRIES):
        meet()
        value = given.detach().requires_grad_()
        before = torch.cuda.memory_allocated() if given.is_cuda else 0
        start = _now(given)
        out = stage(value)
        middle = _now(given)
        saved = torch.cuda.memory_allocated() - before - sum(returned) if given.is_cuda else 1 << 20
        returned.clear()
        out.backward(given)
        ends = _now(given)
        clocks.append((middle - start, ends - middle))
        for weight in stage.parameters():
            weight.grad = None
    for hook in hooks:
        hook.remove()
    forward, backward = np.median(clocks[len(clocks) // 2 :], axis=0).tolist()
    stages = program.stages
    times = dict.fromkeys(("input_grad", "weight_grad"), (backward / 2,) * stages)
    nothing = dict.fromkeys(("update", "reduce"), (0.0,) * stages)
    none = dict.fromkeys(("weights", "gradients", "optimizer", "inputs"), (0.0,) * stages)
    return Cost(
        times=Times(forward=(forward,) * stages, recompute=(forward,) * stages, **times, **nothing),
        memory=Memory(saved=(float(saved),) * stages, **none),
        network=Network(message=0.0, host=Link()),
    )


def _now(given: Tensor) -> float:
    if given.is_cuda:
        torch.cuda.synchronize()
    return time.monotonic()


def offloaded(program: Program) -> float:
    """The share of the forwards of the first device whose state goes to the host."""
    kinds = program.actions.kind[program.device_of == 0]
    return float((kinds == Kind.OFFLOAD).sum() / (kinds == Kind.F).sum())


def allocated(arguments: argparse.Namespace) -> int:
    return torch.cuda.memory_allocated() if arguments.device == "cuda" else 0


def most(arguments: argparse.Namespace) -> int:
    return torch.cuda.max_memory_allocated() if arguments.device == "cuda" else 0


# the report


def row(arguments: argparse.Namespace, setting: Setting, watch: Watch) -> Row:
    alone = isinstance(setting, Alone)
    given = argparse.Namespace(**vars(arguments) | ({"share": 100} if alone else {}))
    by_rank = measured(job, setting, given, watch)
    names = [name for name in arguments.turns if name in by_rank[0]]
    seconds = {name: steps_of(by_rank, name) for name in names}
    kept = {name: by_rank[0][name]["kept"] for name in names}
    none = median(seconds["none"]).value
    ratios = {name: median(seconds[name]).value / none for name in names[1:]}
    forward, saved = by_rank[0]["times"]["none"]
    wholes = setting.ranks * saved, kept["none"] or 1  # what forwards keep of it, and the peak
    gone = {name: [(kept["none"] - kept[name]) / whole for whole in wholes] for name in names[1:]}
    cells = [
        "alone" if alone else "a rank each",
        median(seconds["none"]).shown(1e3, 1),
        f"{forward * 1e3:.1f} ms, {saved / GB:.2f} GB",
        *(f"{ratios[name]:.3f}" if name in ratios else "" for name in TURNS[1:]),
        *(f"{kept[name] / GB:.2f}" if name in kept else "" for name in TURNS[:-1]),
        *(_shares(gone[name]) if name in gone else "" for name in AMONG),
    ]
    facts: dict[str, Any] = {"kept": kept, "gone": gone, "ratios": ratios}
    facts["times"] = by_rank[0]["times"]
    facts["seconds"] = {name: samples.tolist() for name, samples in seconds.items()}
    return Row(cells, facts)


def _shares(found: Sequence[float]) -> str:
    return " ".join(f"{100 * share:.0f}" for share in found)


def steps_of(by_rank: Sequence[dict[str, Any]], name: str) -> Any:
    """From the first start to the last end over all ranks, of each step after the settling."""
    times = np.array([found[name]["clocks"] for found in by_rank])
    return times[:, :, 1].max(0) - times[:, :, 0].min(0)


def rows(arguments: argparse.Namespace) -> list[Setting]:
    """Alone for all sizes, on ranks for the last."""
    ranks = settings(arguments)
    alone = [Alone(*one) for one in ranks]
    return [*(alone if "alone" in arguments.where else []),
            *(ranks[-1:] if "ranks" in arguments.where else [])]  # fmt: skip


if __name__ == "__main__":
    asked = parsed(
        __doc__,
        schedules=("1f1b",),
        transports=["peer"],
        hidden=[2048, 4096, 6144, 8192],
        layers=[4],
        rows=1,
        context=4096,
        steps=3,
        extra={
            "--where": {"nargs": "+", "default": ["alone", "ranks"]},
            "--turns": {"nargs": "+", "default": [*TURNS]},
        },
    )
    reported(asked, COLUMNS, rows(asked), partial(row, asked))
