"""Who is compared, and how: torch and Weft run the same stages in turn, step by step.

Everything here happens in a rank. Knows a row's setting; knows no table and no process.
"""

from __future__ import annotations

import copy
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
from weft.ir.earliest import earliest
from weft.ir.kinds import Kind
from weft.ir.lanes import Lane
from weft.ir.program import Program
from weft.lower import unpaired
from weft.runtime.stage.randomness import Draw
from weft.runtime.stage.role import Role
from weft.runtime.stage.stage import Stage
from weft.runtime.stage.values import Value
from weft.schedules import REGISTRY, Shape

Samples = NDArray[np.float64]
Tell = Callable[[], None]
Turn = Callable[[], Any]

WARM_UP = 2  # steps of each contender
STAGES = 2  # on each device, where the schedule leaves it open

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
    stages = [work.stage(stage) for stage in range(program.stages)]
    pipeline = weft.Pipeline(stages, program, loss=work.loss, transport=transport)
    step = partial(pipeline.step, work.batch, work.target, update=False)
    return Contender(step, pipeline.modules)


def with_torch(setting: Setting, work: Work) -> Contender:
    program, kind = setting.program, getattr(schedules, TORCH[setting.schedule])
    held = program.placement.held[dist.get_rank()]
    modules = {(pipe, stage): work.stage(stage) for pipe, stage in held}
    stages = [
        PipelineStage(module, stage, program.stages, torch.device("cpu"))
        for (_, stage), module in modules.items()
    ]
    is_one = setting.schedule in ONE_STAGE
    schedule = kind(stages[0] if is_one else stages, setting.microbatches, loss_fn=work.loss)
    batch = [work.batch] if (0, 0) in modules else []
    given: dict[str, Any] = {"target": work.target} if (0, program.stages - 1) in modules else {}
    if "return_outputs" in inspect.signature(schedule.step).parameters:
        given["return_outputs"] = False  # the loss alone, as Weft
    return Contender(partial(schedule.step, *batch, **given), modules)


def both(setting: Setting, work: Work, transport: Any) -> dict[str, Turn]:
    """A turn of torch and one of Weft, after a step that gave both the same gradients."""
    one, other = with_torch(setting, work), with_weft(setting, work, transport)
    one.step()
    other.step()
    for place, module in one.modules.items():
        pairs = zip(module.parameters(), other.modules[place].parameters(), strict=True)
        for mine, theirs in pairs:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-6)
    clear(one)
    clear(other)
    return {"torch": partial(timed, one), "weft": partial(timed, other)}


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


def timed(contender: Contender) -> Clock:
    """One step, that all ranks begin together."""
    dist.barrier()
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


# stages alone


class Ending(nn.Module):
    """The last stage with its loss."""

    def __init__(self, stage: nn.Module, work: Work, target: Tensor) -> None:
        super().__init__()
        self.stage, self._loss, self._target = stage, work.loss, target

    def forward(self, value: Tensor) -> Tensor:
        return self._loss(self.stage(value), self._target)


class Loner:
    """A stage that nobody sends to: the same input for every microbatch, of which many may be
    in flight. Backwards run by plain autograd, or where they are divided by a stage of Weft."""

    def __init__(self, module: nn.Module, value: Tensor, *, is_first: bool) -> None:
        self._module, self._value = module, value
        role = Role(index=0, is_first=is_first, is_split=True)
        self._divided = Stage(copy.deepcopy(module), Draw(), role)
        self._is_first, self._given = is_first, Value.of(value, "the input")
        self._outputs: dict[int, Tensor] = {}
        self._gradient = torch.ones_like(module(value))

    def seconds(self, kind: Kind, microbatch: int, *, is_divided: bool) -> float:
        """How long an action takes."""
        calls: dict[Kind, Callable[[], object]] = {
            Kind.F: partial(self._divided.forward, microbatch, [self._given], is_divided=True)
            if is_divided
            else partial(self._forward, microbatch),
            Kind.B: partial(self._backward, microbatch),
            Kind.I: partial(self._divided.input_grad, microbatch, [self._gradient]),
            Kind.W: partial(self._divided.weight_grad, microbatch),
        }
        call = calls[kind]
        start = time.monotonic()
        call()
        return time.monotonic() - start

    def clear(self) -> None:
        for module in (self._module, self._divided.module):
            module.zero_grad(set_to_none=True)

    def _forward(self, microbatch: int) -> None:
        value = self._value.detach().requires_grad_(not self._is_first)
        self._outputs[microbatch] = self._module(value)

    def _backward(self, microbatch: int) -> None:
        self._outputs.pop(microbatch).backward(self._gradient)


def alone(setting: Setting, work: Work) -> Turn:
    """A turn that runs this rank's actions in their order with no messages, as all ranks do.

    It finds the seconds of each action. The order matters: what a stage finds in the caches
    depends on what the device has done since.
    """
    program, held = unpaired(setting.program), {}
    value, target = (part.chunk(setting.microbatches)[0] for part in (work.batch, work.target))
    for _, stage in program.placement.held[dist.get_rank()]:
        is_last = stage == program.stages - 1
        module = Ending(work.stage(stage), work, target) if is_last else work.stage(stage)
        held[stage] = Loner(module, value, is_first=not stage)
    actions = [*program.lane(program.lanes.index(Lane(dist.get_rank())))]
    divided = {(one.stage, one.microbatch) for one in actions if one.kind is Kind.I}

    def turn() -> list[float]:
        dist.barrier()
        taken = []
        for stage, kind, microbatch in ((a.stage, a.kind, a.microbatch) for a in actions):
            is_divided = (stage, microbatch) in divided
            taken.append(held[stage].seconds(kind, microbatch, is_divided=is_divided))
        for loner in held.values():
            loner.clear()
        return taken

    return turn


def ideal_seconds(setting: Setting, by_rank: Sequence[Mapping[str, list[list[float]]]]) -> Samples:
    """For each round, the makespan in Weft's simulator with the actions of the turns alone.

    Messages take no time, and the two of a pair run one after the other, as they do on a CPU.
    """
    program = unpaired(setting.program)
    precedence = program.precedence(np.zeros(len(program.dependencies)))
    order = [lane.device for lane in program.lanes]

    def makespan(lanes: Sequence[list[float]]) -> float:
        durations = np.concatenate([lanes[device] for device in order])
        return float((earliest(precedence, durations) + durations).max())

    return np.array([*map(makespan, zip(*(rank["alone"] for rank in by_rank), strict=True))])
