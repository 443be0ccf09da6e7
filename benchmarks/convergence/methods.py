"""How it is learned: what differs between the methods, as data.

A method is a version function, the stages that it counts, and the microbatches of an update.
PipeDream and 2BW have a stage on each device; WPipe has two, and its first four stages are stale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from tasks import LAYERS
from torch import nn
from torch.optim import Optimizer

from weft.runtime.reference import (
    Version,
    pipedream,
    pipedream_2bw,
    synchronous,
    vertical_sync,
    wpipe,
)
from weft.runtime.weights.options import NamedParameters

DEVICES = 4
ROUND = DEVICES  # microbatches of an update, unless a method says otherwise
MOMENTUM = 0.9


@dataclass(frozen=True)
class Method:
    """A row of the comparison."""

    name: str
    version: Version
    stages: int = DEVICES
    microbatches: int = ROUND
    is_predicting: bool = False
    is_tempered: bool = False

    @property
    def like(self) -> str:
        """The synchronous method with as many microbatches in an update."""
        return "synchronous" + (f", N={self.microbatches}" if self.microbatches != ROUND else "")

    def cut(self, model: nn.Sequential) -> list[nn.Module]:
        """The stages that the version function counts."""
        each = LAYERS // self.stages
        return [model[first : first + each] for first in range(0, LAYERS, each)]


def _every() -> Iterator[Method]:
    yield Method("synchronous", synchronous())
    yield Method("pipedream-2bw", pipedream_2bw())
    yield Method("wpipe", wpipe(DEVICES), LAYERS)
    yield Method("synchronous, N=1", synchronous(), microbatches=1)
    yield Method("pipedream", pipedream(DEVICES), microbatches=1)
    # what else can be asked for
    yield Method("pipedream-2bw fresh", pipedream_2bw(DEVICES - 1))
    yield Method("pipedream-2bw predict", pipedream_2bw(), is_predicting=True)
    yield Method("wpipe predict", wpipe(DEVICES), LAYERS, is_predicting=True)
    yield Method("vertical-sync", vertical_sync(DEVICES), microbatches=1)
    yield Method("pipedream predict", pipedream(DEVICES), is_predicting=True, microbatches=1)
    yield Method("pipedream temper", pipedream(DEVICES), is_tempered=True, microbatches=1)
    yield Method("synchronous, N=8", synchronous(), microbatches=2 * ROUND)
    yield Method("wpipe, N=8", wpipe(DEVICES), LAYERS, microbatches=2 * ROUND)
    yield Method(
        "wpipe fresh, N=8", wpipe(DEVICES, fresh_from=ROUND), LAYERS, microbatches=2 * ROUND
    )


METHODS = {method.name: method for method in _every()}
MAIN = tuple(METHODS)[:5]
SWEPT = tuple(METHODS)[:6]


# optimizers


@dataclass(frozen=True)
class Rule:
    """How weights change; `power` is how its rate follows the samples of an update."""

    power: float
    made: Callable[[float], Callable[[NamedParameters], Optimizer]]

    def rate(self, rate: float, microbatches: int) -> float:
        """Of an update of so many microbatches, where `rate` is that of a round."""
        return float(rate * (microbatches / ROUND) ** self.power)


RULES = {
    "sgd": Rule(1.0, lambda rate: lambda named: torch.optim.SGD(named, rate)),
    "momentum": Rule(1.0, lambda rate: lambda named: torch.optim.SGD(named, rate, MOMENTUM)),
    "adamw": Rule(0.5, lambda rate: lambda named: torch.optim.AdamW(named, rate)),
    "adamw-still": Rule(
        0.5, lambda rate: lambda named: torch.optim.AdamW(named, rate, betas=(0.0, 0.999))
    ),
}
