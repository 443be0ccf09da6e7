"""Who is compared, and how: torch and Weft run the same stages in turn, step by step.

Everything here happens in a rank. Knows a row's setting; knows no table and no process.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules

import weft
from weft.ir.program import Program
from weft.schedules import REGISTRY, Shape

Samples = NDArray[np.float64]
Tell = Callable[[], None]
Turn = Callable[[], Any]

WARM_UP = 2  # steps of each contender
STAGES = 2  # on each device, where the schedule leaves it open
HALF_CLOSE = 0.02  # of its norm, a gradient in half precision

# Weft's name of a schedule, and torch's class. The orders are the same, but for looped-bfs, where
# torch takes the microbatches of the backward in another order; its ideal time is the same.
TORCH = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved-1f1b": "ScheduleInterleaved1F1B",
    "looped-bfs": "ScheduleLoopedBFS",
    "interleaved-zb1p": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}
ONE_STAGE = ("gpipe", "1f1b")  # on each rank; torch runs them by loops of their own


class Setting(NamedTuple):
    """What one row of a table is about."""

    schedule: str
    ranks: int
    microbatches: int

    @property
    def program(self) -> Program:
        return REGISTRY[self.schedule].program(self._shape)

    @property
    def refusal(self) -> str:
        """Why the schedule has no program of this shape, if it has none."""
        refusal = REGISTRY[self.schedule].accepts(self._shape)
        return refusal.reason if refusal else ""

    @property
    def _shape(self) -> Shape:
        least, most = REGISTRY[self.schedule].stages_per_device
        return Shape(
            devices=self.ranks,
            microbatches=self.microbatches,
            stages_per_device=least if most else max(least, STAGES),
        )


class Work(NamedTuple):
    """What contenders run: the stages, a batch with its target, and the loss of a microbatch."""

    stage: Callable[[int], nn.Module]
    batch: Tensor
    target: Tensor
    loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.mse_loss

    @classmethod
    def random(cls, stage: Callable[[int], nn.Module], microbatches: int, *form: int) -> Work:
        """Normally distributed microbatches of this form."""
        torch.manual_seed(0)
        rows, *others = form
        batch, target = (torch.randn(microbatches * rows, *others) for _ in range(2))
        return cls(stage, batch, target)


class Contender(NamedTuple):
    """A step without an update, and the modules that it trains, by pipe and stage."""

    step: Callable[[], Any]
    modules: Mapping[tuple[int, int], nn.Module]


def with_weft(setting: Setting, work: Work, transport: Any) -> Contender:
    program = setting.program
    held = {stage for _, stage in program.placement.held[dist.get_rank()]}
    made = (work.stage(stage) for stage in range(program.stages))
    stages = [one if stage in held else one.to("meta") for stage, one in enumerate(made)]
    pipeline = weft.Pipeline(stages, program, loss=work.loss, transport=transport)
    step = partial(pipeline.step, work.batch, work.target, update=False)
    return Contender(finished(step, work.batch.device), pipeline.modules)


def with_torch(setting: Setting, work: Work) -> Contender:
    program, kind = setting.program, getattr(schedules, TORCH[setting.schedule])
    held = program.placement.held[dist.get_rank()]
    modules = {(pipe, stage): work.stage(stage) for pipe, stage in held}
    stages = [
        PipelineStage(module, stage, program.stages, work.batch.device)
        for (_, stage), module in modules.items()
    ]
    is_one = setting.schedule in ONE_STAGE
    schedule = kind(stages[0] if is_one else stages, setting.microbatches, loss_fn=work.loss)
    batch = [work.batch] if (0, 0) in modules else []
    given: dict[str, Any] = {"target": work.target} if (0, program.stages - 1) in modules else {}
    if "return_outputs" in inspect.signature(schedule.step).parameters:
        given["return_outputs"] = False  # the loss alone, as Weft
    step = partial(schedule.step, *batch, **given)
    return Contender(finished(step, work.batch.device), modules)


def finished(step: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """A step that has ended on its device as well when it returns."""
    if device.type == "cpu":
        return step

    def waiting() -> None:
        step()
        torch.cuda.synchronize(device)

    return waiting


def both(setting: Setting, work: Work, transport: Any) -> dict[str, Turn]:
    """A turn of torch and one of Weft, after a step that gave both the same gradients."""
    one, other = with_torch(setting, work), with_weft(setting, work, transport)
    one.step()
    other.step()
    for place, module in one.modules.items():
        pairs = zip(module.parameters(), other.modules[place].parameters(), strict=True)
        for mine, theirs in pairs:
            _check_close(mine.grad, theirs.grad)
    clear(one)
    clear(other)
    return {"torch": partial(timed, one), "weft": partial(timed, other)}


def _check_close(mine: Tensor | None, theirs: Tensor | None) -> None:
    """In half precision kernels that add up in any order differ in single values by much."""
    if mine is None or theirs is None or mine.dtype == torch.float32:
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-6)
    elif (off := float((mine - theirs).norm() / theirs.norm())) > HALF_CLOSE:
        raise AssertionError(f"gradients of torch and Weft differ by {off:.1%} of their norm")


def clear(contender: Contender) -> None:
    for module in contender.modules.values():
        module.zero_grad(set_to_none=True)


# rounds


class Clock(NamedTuple):
    """A step on one rank: CLOCK_MONOTONIC, and the CPU of the main thread and of all threads."""

    start: float
    end: float
    thread: float
    process: float


def meet() -> None:
    """Wait for all ranks, on their hosts, whatever else their process group has."""
    dist.all_reduce(torch.zeros(1))


def timed(contender: Contender) -> Clock:
    """One step, that all ranks begin together."""
    meet()
    thread, process, start = time.thread_time(), time.process_time(), time.monotonic()
    contender.step()
    end = time.monotonic()
    clock = Clock(start, end, time.thread_time() - thread, time.process_time() - process)
    clear(contender)
    return clock


def rounds(turns: Mapping[str, Turn], steps: int, tell: Tell) -> dict[str, list[Any]]:
    """Every turn once in every round, in alternating order, so that noise hits all alike."""
    found: dict[str, list[Any]] = {name: [] for name in turns}
    for number in range(-WARM_UP, steps):
        for name, turn in list(turns.items())[:: -1 if number % 2 else 1]:
            result = turn()
            if number >= 0:
                found[name].append(result)
        tell()
    return found


def step_seconds(by_rank: Sequence[Mapping[str, list[Clock]]], name: str) -> Samples:
    """From the first start to the last end over all ranks, for each step of a contender."""
    times = np.array([found[name] for found in by_rank])
    return np.asarray(times[:, :, 1].max(0) - times[:, :, 0].min(0))
