"""The time of a step of four devices in one process, over plain gradient accumulation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

import weft
from weft.ir.program import Program
from weft.models.gpt import Block
from weft.schedules import REGISTRY, Shape

GPU = torch.device("cuda", 0)
DEVICES, MICROBATCHES = 4, 16
ROWS, TOKENS, LAYERS = 2, 1024, 8


def program_of(name: str, microbatches: int) -> Program:
    least, most = REGISTRY[name].stages_per_device
    shape = Shape(
        devices=DEVICES, microbatches=microbatches, stages_per_device=least if most else 2
    )
    return REGISTRY[name].program(shape)


def squared(output: Tensor, target: Tensor) -> Tensor:
    return functional.mse_loss(output, target)


def blocks(hidden: int, option: str) -> list[nn.Module]:
    torch.manual_seed(0)
    made = [Block(hidden, hidden // 128, 0.0).to(GPU, torch.bfloat16) for _ in range(LAYERS)]
    return [torch.compile(b, dynamic=False) for b in made] if option == "compiled" else [*made]


def stages_of(made: Sequence[nn.Module], stages: int) -> list[nn.Module]:
    each = len(made) // stages
    return [nn.Sequential(*made[i * each : (i + 1) * each]) for i in range(stages)]


def accumulation(model: nn.Module, data: Tensor, target: Tensor) -> Callable[[], None]:
    def one(value: Tensor, wanted: Tensor) -> None:
        (squared(model(value), wanted) / MICROBATCHES).backward()  # type: ignore[no-untyped-call]

    def step() -> None:
        for value, wanted in zip(data.split(ROWS), target.split(ROWS), strict=True):
            one(value, wanted)

    return step


def graphed_accumulation(model: nn.Module, data: Tensor, target: Tensor) -> Callable[[], None]:
    """One microbatch's forward and backward in one graph."""
    value, wanted = data[:ROWS].clone(), target[:ROWS].clone()

    def one() -> None:
        (squared(model(value), wanted) / MICROBATCHES).backward()  # type: ignore[no-untyped-call]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            one()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one()

    def step() -> None:
        for row in range(0, len(data), ROWS):
            value.copy_(data[row : row + ROWS])
            wanted.copy_(target[row : row + ROWS])
            graph.replay()

    return step


def seconds_of(step: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def pipelined(
    name: str, hidden: int, option: str, data: Tensor, target: Tensor
) -> Callable[[], object]:
    program = program_of(name, MICROBATCHES)
    stages = stages_of(blocks(hidden, option), program.stages)
    pipeline = weft.Pipeline(
        stages,
        program,
        loss=squared,
        optimizer=lambda named: torch.optim.SGD([weight for _, weight in named], lr=0.0),
        graphs=option == "graphed",
    )
    step = lambda: pipeline.step(data, target, update=False)  # noqa: E731
    for _ in range(4):
        step()
    return step


def times(hidden: int, option: str, schedules: Sequence[str], rounds: int) -> str:
    shape = (ROWS * MICROBATCHES, TOKENS, hidden)
    data, target = (torch.randn(shape, device=GPU, dtype=torch.bfloat16) for _ in range(2))
    model = nn.Sequential(*blocks(hidden, option))
    make = graphed_accumulation if option == "graphed" else accumulation
    plain = make(model, data, target)
    steps = {name: pipelined(name, hidden, option, data, target) for name in schedules}
    for _ in range(2):
        plain()
    found: dict[str, list[float]] = {name: [] for name in steps}
    base = []
    for _ in range(rounds):
        base.append(seconds_of(plain))
        for name, step in steps.items():
            found[name].append(seconds_of(step) / base[-1])
    lines = [f"plain {1e3 * statistics.median(base):.1f} ms"]
    for name, ratios in found.items():
        middle = statistics.median(ratios)
        lines.append(f"{name} {middle:.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    held = torch.cuda.max_memory_reserved() / 2**30  # graphs keep more than is allocated
    torch.cuda.reset_peak_memory_stats()
    return ", ".join(lines) + f", {held:.1f} GiB reserved"
