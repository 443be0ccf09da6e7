"""One run: a task learned by a method, and what is kept of it."""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from methods import METHODS, ROUND, RULES, Method
from tasks import Sample, Task, loss, task, tried
from torch import nn

from weft.errors import NonfiniteError
from weft.runtime import Pipeline, Reference, Staleness
from weft.runtime.reference import Method as Trained
from weft.runtime.reference import synchronous
from weft.schedules import one_f_one_b

POINTS = 40  # of a curve
PARTS = 10  # of a run; the worst and the last are kept
RESULTS = ("worst", "end", "held_out", "accuracy")  # none of them where the loss is not finite
TEMPERED = 4  # a run's quarter has lower rates


class Run(NamedTuple):
    """What is run; a rate is that of an update, whatever it consists of."""

    part: str  # curve or sweep
    task: str
    optimizer: str
    method: str
    rate: float
    seed: int
    rounds: int


def trained(run: Run, digits: Path | None) -> dict[str, Any]:
    """What the JSON file says of a run."""
    learned, method = task(run.task, digits), METHODS[run.method]
    model = learned.model(run.seed)
    start = first_loss(model, learned, run.seed)
    losses = steps(run, learned, method, model)
    is_finite = all(map(math.isfinite, losses))
    known = losses if is_finite else losses[:-1]
    return {
        **run._asdict(),
        "start": start,
        "constant": learned.constant,
        "losses": [round(value, 4) for value in means(known, POINTS)],
        **(results(losses, model, learned) if is_finite else dict.fromkeys(RESULTS)),
    }


def results(losses: list[float], model: nn.Sequential, learned: Task) -> dict[str, float]:
    """What a run has come to, of RESULTS."""
    parts = means(losses, PARTS)
    return dict(zip(RESULTS, (max(parts), parts[-1], *tried(model, learned.held_out)), strict=True))


def steps(run: Run, learned: Task, method: Method, model: nn.Sequential) -> list[float]:
    """The loss of every update, each with the weights that the method computes it with."""
    updates = run.rounds * ROUND // method.microbatches
    temper = updates // TEMPERED if method.is_tempered else None
    stale = Staleness(predict=method.is_predicting, temper=temper)
    trainer = Reference(
        method.cut(model),
        Trained(method.version, method.microbatches),
        loss=loss,
        optimizer=RULES[run.optimizer].made(run.rate),
        staleness=stale if method.is_predicting or method.is_tempered else None,
    )
    losses = []
    for update in range(updates):
        try:
            given = batch(learned, run.seed, update, method.microbatches)
            losses.append(float(trainer.step(*given)))
        except NonfiniteError:
            return [*losses, math.inf]
    return losses


def batch(
    learned: Task, seed: int, update: int, microbatches: int
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The next microbatches of the one row of samples that all methods see."""
    first = update * microbatches
    samples = [learned.microbatch(seed, first + index) for index in range(microbatches)]
    return [sample.inputs for sample in samples], [sample.targets for sample in samples]


@torch.no_grad()
def first_loss(model: nn.Sequential, learned: Task, seed: int) -> float:
    """Of a round, before anything is learned."""
    untouched = copy.deepcopy(model)  # a forward changes the statistics of BatchNorm
    samples = [learned.microbatch(seed, index) for index in range(ROUND)]
    return sum(float(_loss(untouched, sample)) for sample in samples) / ROUND


def means(losses: list[float], count: int) -> list[float]:
    """Of so many parts of a run, or of as many as it has updates."""
    edges = np.linspace(0, len(losses), min(count, len(losses)) + 1).astype(int)
    return [float(np.mean(losses[first:last])) for first, last in pairwise(edges)]


# data parallel and 1F1B are one method


def agreement(name: str, updates: int, digits: Path | None) -> dict[str, Any]:
    """How far the weights of three ways to be synchronous are from each other, in float64."""
    learned = task(name, digits)
    parallel, piped, alone = (learned.model(0).double() for _ in range(3))
    optimizer = RULES["momentum"].made(0.01)
    program = one_f_one_b(devices=ROUND, microbatches=ROUND)
    cut = METHODS["synchronous"].cut
    pipeline = Pipeline(cut(piped), program, loss=loss, optimizer=optimizer)
    method = Trained(synchronous(), ROUND)
    trainer = Reference(cut(alone), method, loss=loss, optimizer=optimizer)
    replicas = optimizer(parallel.named_parameters())
    for update in range(updates):
        inputs, targets = batch(learned, 0, update, ROUND)
        inputs = [value.double() if value.is_floating_point() else value for value in inputs]
        pipeline.step(inputs, targets)
        trainer.step(inputs, targets)
        data_parallel(parallel, [Sample(*pair) for pair in zip(inputs, targets, strict=True)])
        replicas.step()
    moved = distance(learned.model(0).double(), alone)
    return {
        "task": name,
        "updates": updates,
        "moved": moved,
        "1f1b": distance(piped, alone),
        "data parallel": distance(parallel, alone),
    }


def data_parallel(model: nn.Module, samples: list[Sample]) -> None:
    """The mean of the gradients that replicas get, each from its own samples."""
    replicas = [copy.deepcopy(model) for _ in samples]
    for replica, sample in zip(replicas, samples, strict=True):
        replica.zero_grad()
        torch.autograd.backward(_loss(replica, sample))
    everyone = zip(model.parameters(), *(each.parameters() for each in replicas), strict=True)
    for weight, *copies in everyone:
        weight.grad = torch.stack([each.grad for each in copies if each.grad is not None]).mean(0)


def distance(one: nn.Module, other: nn.Module) -> float:
    """The largest difference of two weights."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def _loss(model: nn.Module, sample: Sample) -> torch.Tensor:
    return loss(model(sample.inputs), sample.targets)
