"""CUDA graphs and compiled stages on one GPU: the same bits, and the time of a step.

    python benchmarks/gpu/graphs.py [--parts exact,refused,times] [--hidden 1024,2048,4096]
        [--options eager,graphed,compiled] [--schedules 1f1b,interleaved-1f1b,zbv]
        [--rounds 5] [--seconds 170]

exact    a small GPT trained by AdamW: with graphs, without, and by the reference
refused  what cannot be captured is refused, and leaves torch's generator as it was
times    a step of four devices in this process over plain gradient accumulation with the same
         option, alternately: the median of the ratios, the least and the largest

Each case fails alone; what the seconds do not suffice for is skipped, and says so.
"""

from __future__ import annotations

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts

import argparse
import copy
import gc
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from step_times import DEVICES, GPU, program_of, times
from torch import Tensor, nn
from torch.nn import functional

import weft
from weft.ir.program import Program
from weft.models.gpt import gpt
from weft.schedules import REGISTRY

STEPS = 5  # two without graphs, one that captures, two that replay
VOCABULARY, SHORT = 256, 128
BEGUN = time.perf_counter()


class Asked(NamedTuple):
    """What is to be run, and for how long."""

    parts: Sequence[str]
    hidden: Sequence[int]
    options: Sequence[str]
    schedules: Sequence[str]
    rounds: int
    seconds: float


def attempt(name: str, seconds: float, case: Callable[[], str]) -> None:
    """Run a case and print one line of it, or why it failed."""
    spent = time.perf_counter() - BEGUN
    if spent > seconds:
        print(f"{name}: skipped, as {spent:.0f} of {seconds:.0f} s are spent", flush=True)
        return
    try:
        found = case()
    except Exception as error:
        found = f"FAILED {type(error).__name__}: {str(error)[:600]}"
        where = traceback.extract_tb(error.__traceback__)[-4:]
        found += "".join(f"\n    {one.filename}:{one.lineno} {one.line}" for one in where)
        cause = error.__cause__
        found += "" if cause is None else f"\n    from {type(cause).__name__}: {str(cause)[:400]}"
    print(f"{name}: {found}  [{time.perf_counter() - BEGUN:.0f} s]", flush=True)
    gc.collect()
    torch.cuda.empty_cache()


# the same bits


def likelihood(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1).float(), target.flatten())


def adam(named: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([weight for _, weight in named], lr=1e-3)


def small_stages(program: Program, dropout: float, dtype: torch.dtype) -> list[nn.Module]:
    torch.manual_seed(0)
    model = gpt(VOCABULARY, layers=6, hidden=256, heads=4, context=SHORT, dropout=dropout)
    return [*weft.split(model.to(GPU, dtype), stages=program.stages)]


def small_batches(program: Program) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    shape = (2, 2 * program.microbatches, SHORT)
    drawn = [torch.randint(VOCABULARY, shape, generator=generator).to(GPU) for _ in range(STEPS)]
    return [(both[0], both[1]) for both in drawn]


class Trained(NamedTuple):
    """What a way of training gave."""

    losses: list[Tensor]
    weights: dict[str, Tensor]


def by_pipeline(stages: Sequence[nn.Module], program: Program, settings: dict[str, Any]) -> Trained:
    pipeline = weft.Pipeline(stages, program, **settings)
    losses = [pipeline.step(batch, target).loss for batch, target in small_batches(program)]
    if settings.get("graphs"):
        refuse_uncaptured(pipeline)
    return Trained(losses, weights_of(stages))


def refuse_uncaptured(pipeline: weft.Pipeline) -> None:
    """A comparison proves nothing where no stage was replayed."""
    for trained in pipeline._parts.training._stages:
        signatures = trained.stage._signatures.values()  # type: ignore[attr-defined]
        if not any(signature.free for signature in signatures):
            raise RuntimeError(f"stage {trained.stage.index} was not captured")


def by_reference(
    stages: Sequence[nn.Module], program: Program, settings: dict[str, Any]
) -> Trained:
    reference = weft.Reference(stages, program, **settings)
    losses = [reference.step(batch, target) for batch, target in small_batches(program)]
    return Trained(losses, weights_of(stages))


def weights_of(stages: Sequence[nn.Module]) -> dict[str, Tensor]:
    named = [(i, *pair) for i, stage in enumerate(stages) for pair in stage.named_parameters()]
    return {f"{name} of stage {index}": weight.detach() for index, name, weight in named}


def difference(one: Trained, other: Trained) -> str | None:
    """The first thing that differs."""
    for step, (mine, theirs) in enumerate(zip(one.losses, other.losses, strict=True)):
        is_alike = mine.dtype == theirs.dtype  # a result's has the type of the weights
        if is_alike and not torch.equal(mine.cpu(), theirs.cpu()):
            return f"the loss of step {step} ({float(mine)!r}, {float(theirs)!r})"
    for name, weight in one.weights.items():
        if not torch.equal(weight, other.weights[name]):
            most = (weight - other.weights[name]).abs().max().item()
            return f"{name} (by {most:.1e} at most)"
    return None


def exact(name: str, dropout: float, dtype: torch.dtype, **settings: Any) -> str:
    program = program_of(name, 2 * DEVICES)
    settings = {"loss": likelihood, "optimizer": adam, "clip": 1.0, "seed": 3, **settings}
    stages = small_stages(program, dropout, dtype)
    kept = [copy.deepcopy(stages) for _ in range(2)]
    graphed = by_pipeline(stages, program, {**settings, "graphs": True})
    plain = by_pipeline(kept[0], program, settings)
    reference = by_reference(kept[1], program, settings)
    pairs = {"graphs against none": (graphed, plain), "none against reference": (plain, reference)}
    found = {what: difference(*pair) for what, pair in pairs.items()}
    return ", ".join(f"{what} {'ok' if one is None else one}" for what, one in found.items())


def exact_compiled(name: str, dropout: float) -> str:
    program = program_of(name, 2 * DEVICES)
    settings: dict[str, Any] = {"loss": likelihood, "optimizer": adam, "seed": 3}
    ways = []
    for graphs in (True, False):
        stages = small_stages(program, dropout, torch.float32)
        compiled = [torch.compile(stage, dynamic=False) for stage in stages]
        ways.append(by_pipeline(compiled, program, {**settings, "graphs": graphs}))
    found = difference(*ways)
    return f"graphs against none {'ok' if found is None else found}"


def exactness(asked: Asked) -> None:
    torch.use_deterministic_algorithms(True)
    for name in asked.schedules:
        for dropout, dtype in ((0.0, torch.float32), (0.1, torch.float32), (0.1, torch.bfloat16)):
            title = f"exact {name}, dropout {dropout}, {dtype}"
            attempt(title, asked.seconds, lambda n=name, d=dropout, t=dtype: exact(n, d, t))
    half = {"precision": torch.bfloat16, "scale": 256.0}
    title = "exact zbv, dropout 0.1, precision and scale"
    attempt(title, asked.seconds, lambda: exact("zbv", 0.1, torch.float32, **half))
    if "compiled" in asked.options:
        for name, dropout in (("1f1b", 0.0), ("zbv", 0.1)):
            title = f"exact {name}, dropout {dropout}, compiled"
            attempt(title, asked.seconds, lambda n=name, d=dropout: exact_compiled(n, d))
    torch.use_deterministic_algorithms(False)


# what is refused


class Reading(nn.Linear):
    """Reads its data on the host."""

    def forward(self, value: Tensor) -> Tensor:
        out = super().forward(value)
        return out if value.is_meta or out.sum().item() < 1e9 else -out


class Unsteady(nn.Linear):
    """Draws in a way that the steps without graphs do not show."""

    is_drawing: Sequence[bool] = (False,)  # in a container, where it is not seen

    def forward(self, value: Tensor) -> Tensor:
        out = super().forward(value)
        return functional.dropout(out, 0.5) if self.is_drawing[0] else out


def refused(kind: type[nn.Linear]) -> str:
    program = REGISTRY["1f1b"](devices=2, microbatches=4)
    stages = [kind(64, 64).to(GPU) for _ in range(2)]
    pipeline = weft.Pipeline(stages, program, loss=functional.mse_loss, graphs=True)
    data = torch.randn(8, 64, device=GPU)
    for _ in range(2):
        pipeline.step(data, data)
    for stage in stages:
        stage.is_drawing = [True]  # type: ignore[assignment]
    try:
        pipeline.step(data, data)
    except weft.errors.WeftError as error:
        torch.cuda.synchronize()
        drawn = torch.rand(4, device=GPU).sum().item()
        return f"ok, and drew {drawn:.2f} afterwards: {str(error)[:200]}"
    return "NOT REFUSED"


def timing(asked: Asked) -> None:
    for hidden in asked.hidden:
        for option in asked.options:
            if option == "compiled":
                torch._dynamo.reset()
            attempt(
                f"times hidden {hidden}, {option}",
                asked.seconds,
                lambda h=hidden, o=option: times(h, o, asked.schedules, asked.rounds),
            )


def arguments() -> Asked:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--parts", default="exact,refused,times")
    parser.add_argument("--hidden", default="1024,2048,4096")
    parser.add_argument("--options", default="eager,graphed,compiled")
    parser.add_argument("--schedules", default="1f1b,interleaved-1f1b,zbv")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=170.0)
    found = parser.parse_args()
    parts, options, schedules = (
        one.split(",") for one in (found.parts, found.options, found.schedules)
    )
    hidden = [int(one) for one in found.hidden.split(",")]
    return Asked(parts, hidden, options, schedules, found.rounds, found.seconds)


def main() -> None:
    asked = arguments()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    if "exact" in asked.parts:
        exactness(asked)
    if "refused" in asked.parts:
        for kind in (Reading, Unsteady):
            attempt(f"refused {kind.__name__}", asked.seconds, lambda k=kind: refused(k))
    if "times" in asked.parts:
        timing(asked)


if __name__ == "__main__":
    main()
