"""Profiles: the seconds and bytes of each stage, measured before a run to predict it.

Every rank times its own stages while the others time theirs, as they will run. Sees modules and
a program; knows no schedule by name.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.cost import Cost, Link, Memory, Network, Provenance, Times
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.runtime.randomness import Draw, keyed
from weft.runtime.split import names_of
from weft.runtime.stage import Loss, Stage

RUNS, WARM_UP = 15, 3
ADAM_STATES = 2


@dataclass(frozen=True, slots=True)
class Sample:
    """What profiling runs on: one microbatch, and what its loss is."""

    inputs: Tensor
    loss: Loss


def profiled(stages: Sequence[nn.Module], program: Program, sample: Sample, devices: range) -> Cost:
    """The cost of a program; in a process group, every rank measures what its devices hold."""
    values = _values(stages, sample.inputs)
    table = torch.zeros(len(stages), 4, dtype=torch.float64)
    if dist.is_initialized():
        dist.barrier()
    for index, device in enumerate(program.placement.pipes[0]):
        if device in devices:
            table[index] = _measured(stages, index, program, values[index], sample.loss)
    lag = _lag(values[-1] if len(stages) > 1 else sample.inputs)
    if dist.is_initialized():
        dist.all_reduce(table)
        dist.all_reduce(lag)
    forward, input_grad, weight_grad, saved = (tuple(column) for column in table.t().tolist())
    zeros, weights = (0.0,) * len(stages), tuple(map(_weight_bytes, stages))
    return Cost(
        times=Times(forward, input_grad, weight_grad, forward, zeros, zeros),
        memory=Memory(
            weights=weights,
            gradients=weights,
            optimizer=tuple(ADAM_STATES * size for size in weights),
            saved=saved,
            inputs=tuple(float(value.nbytes) for value in values),
        ),
        network=Network(
            message=tuple(float(values[end].nbytes) for _, end in program.graph.edges),
            default=Link(latency=float(lag)),
        ),
        provenance=dict.fromkeys(
            ("forward", "input_grad", "weight_grad", "recompute", "network"),
            (Provenance.MEASURED,) * len(stages),
        ),
    )


def _values(stages: Sequence[nn.Module], inputs: Tensor) -> list[Tensor]:
    """What each stage reads."""
    values = [inputs]
    with torch.no_grad():
        for stage in stages[:-1]:
            values.append(stage(values[-1]))
    return values


def _measured(
    stages: Sequence[nn.Module], index: int, program: Program, value: Tensor, loss: Loss
) -> Tensor:
    """Seconds of F, I and W, and the bytes that F keeps."""
    mine = program.actions.kind[program.actions.stage == index]
    is_split, is_last = bool((mine == Kind.I).any()), index == len(stages) - 1
    module = copy.deepcopy(stages[index])
    draw = Draw()
    keyed(module, draw, names_of(module, index))
    stage = Stage(module, draw, is_first=index == 0, is_split=is_split, is_recomputed=False)
    stage.loss = loss if is_last else None
    kept = Kept(module)
    with kept.counting():
        (output,) = stage.forward(0, [value])
    gradient = None if is_last else torch.randn_like(output)
    stage.backward(0, [gradient])
    times: list[list[float]] = [[], [], []]
    for _ in range(WARM_UP + RUNS):
        times[0].append(_seconds(lambda: stage.forward(0, [value])))
        if is_split:
            times[1].append(_seconds(lambda: stage.input_grad(0, [gradient])))
            times[2].append(_seconds(lambda: stage.weight_grad(0)))
        else:
            whole = _seconds(lambda: stage.backward(0, [gradient]))
            times[1].append(whole / 2)  # only the sum of both is ever used
            times[2].append(whole / 2)
    medians = [median(runs[WARM_UP:]) for runs in times]
    return torch.tensor([*medians, float(kept.size)], dtype=torch.float64)


class Kept:
    """Counts the bytes that autograd keeps, once each, without the weights."""

    def __init__(self, module: nn.Module) -> None:
        self._known = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
        self._alive: list[Tensor] = []
        self.size = 0

    def counting(self) -> AbstractContextManager[None]:
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._known:
            self._known.add(storage.data_ptr())
            self._alive.append(tensor)  # or its address might be given out again
            self.size += storage.nbytes()
        return tensor


def _lag(value: Tensor) -> Tensor:
    """Seconds from one rank to another, half of a round trip; known on rank 0 alone."""
    lag = torch.zeros(1, dtype=torch.float64)
    if not dist.is_initialized() or dist.get_world_size() < 2:
        return lag
    dist.barrier()
    if dist.get_rank() == 0:
        lag[0] = median(_seconds(lambda: _ping(value, first=True)) for _ in range(RUNS)) / 2
    elif dist.get_rank() == 1:
        for _ in range(RUNS):
            _ping(value, first=False)
    return lag


def _ping(value: Tensor, *, first: bool) -> None:
    arrived = torch.empty_like(value)
    if first:
        dist.send(value, 1)
        dist.recv(arrived, 1)
    else:
        dist.recv(arrived, 0)
        dist.send(arrived, 0)


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _weight_bytes(stage: nn.Module) -> float:
    return float(sum(weight.nbytes for weight in stage.parameters()))
