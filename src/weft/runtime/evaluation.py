"""Evaluations: the losses and metrics of many batches, weighted by their valid targets or rows.

loss = sum of (main * count) / sum of count  +  extra losses: a mean for each batch, by its count
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import nan
from numbers import Real
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from weft.errors import InputError
from weft.runtime.batch import Cut, rows_of
from weft.runtime.criterion import See
from weft.runtime.feed import GivenData
from weft.runtime.losses import LossFunction, Parts, counts_of, is_counting
from weft.runtime.stage.rows import joined
from weft.runtime.stage.values import Value

Metric: TypeAlias = Callable[..., Tensor | float]  # of an output and the target of a microbatch


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an evaluation found, the same on every rank.

    loss     the mean over valid targets, or over rows where the loss does not count them
    metrics  the same mean of each of them
    """

    loss: float
    metrics: dict[str, float]
    batches: int
    samples: int


class Judgement(NamedTuple):
    """What was found of a microbatch; `figures` has its main and extra loss, and its metrics."""

    batch: int
    microbatch: int
    valid: int
    rows: int
    figures: Sequence[Any]


class Tally:
    """Figures of the microbatches whose last stage is in this process."""

    def __init__(
        self,
        loss: LossFunction,
        metrics: Mapping[str, Metric],
        device: torch.device,
        *,
        is_whole_batch: bool = False,
    ) -> None:
        self._loss, self._metrics, self._device = loss, metrics, device
        self._is_whole = is_whole_batch
        self._entries: list[Judgement] = []
        self.batches = 0

    def watching(self, given: GivenData, inputs: Cut) -> See:
        """What takes the outputs of the next batch, but for those that fill the program."""
        self.batches += 1
        targets = given.targets or Cut([], 0, is_list=False)
        rows = [*map(rows_of, targets.values, inputs.values)]  # a loss may read no targets
        counted = [*zip(targets.values, rows, strict=True)][: min(inputs.given, targets.given)]
        if self._is_whole and targets.values:
            counted = [(joined(targets.values, "the loss"), sum(rows))]
        return partial(self._see, self.batches - 1, dict(enumerate(counted, inputs.first)))

    def _see(
        self, batch: int, counted: Mapping[int, tuple[Value, int]], microbatch: int, output: Any
    ) -> None:
        """Judge an output by its target, if it is one of those that count."""
        if microbatch not in counted:
            return
        target, rows = counted[microbatch]
        (count,) = counts_of(self._loss, [target]) if is_counting(self._loss) else (rows,)
        arguments = target.to(self._device).arguments
        main, extra = Parts.of(self._loss(output, *arguments))
        found = [_number(name, f(output, *arguments)) for name, f in self._metrics.items()]
        figures = [main, 0.0 if extra is None else extra, *found]
        self._entries.append(Judgement(batch, microbatch, count, rows, figures))

    def written(self) -> bytes:
        """What this process has found, as bytes."""
        return json.dumps([(*e[:-1], [*map(float, e.figures)]) for e in self._entries]).encode()

    def total(self, shares: Iterable[bytes]) -> Evaluation:
        """What all processes have found, added in the order of the batches."""
        entries = sorted(Judgement(*one) for share in shares for one in json.loads(share))
        total = sum(entry.valid for entry in entries)
        valid = [entry for entry in entries if entry.valid]  # a mean over nothing is nan
        means = [
            _quotient(sum(entry.figures[place] * entry.valid for entry in valid), total)
            for place in (0, *range(2, 2 + len(self._metrics)))
        ]
        extra = sum(count * mean for count, mean in _extras(entries))
        return Evaluation(
            loss=means[0] + _quotient(extra, total),
            metrics=dict(zip(self._metrics, means[1:], strict=True)),
            batches=self.batches,
            samples=sum(entry.rows for entry in entries),
        )


def _extras(entries: Sequence[Judgement]) -> Iterator[tuple[int, float]]:
    """For each batch, its valid targets and the mean of its extra losses."""
    for _, found in groupby(entries, key=lambda entry: entry.batch):
        batch = [*found]
        yield sum(e.valid for e in batch), sum(e.figures[1] for e in batch) / len(batch)


def _quotient(figure: float, total: int) -> float:
    return figure / total if total else nan


def _number(name: str, found: Any) -> Any:
    if isinstance(found, Tensor) and found.numel() == 1:
        return found.detach()
    if isinstance(found, Real):  # also one of NumPy's
        return found
    raise InputError(f"the metric {name} returns {type(found).__name__}; let it return one number")


@contextmanager
def untouched_randomness() -> Iterator[None]:
    """Leave all global generators as they were: loaders draw their order from them."""
    python, numpy = random.getstate(), np.random.get_state()
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = [torch.cuda.current_device()] if is_used else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
