"""Layers of known duration: attention and experts that sleep, and exchanges of tokens that do.

An exchange takes its time from when all ranks of the group have come to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from borrowed import SlowReturn, nap
from torch import Tensor, nn

from weft.cost import Cost, Memory, Network, Times
from weft.cost.cost import Shares
from weft.runtime.experts import ExpertGroup

COMPUTED, MOVED, WEIGHTS = 20e-3, 15e-3, 10e-3  # seconds: attention or experts; a2a; W of either
WIDTH = 8


class Computed(nn.Module):
    """y = x + w, with a nap in F, in I and in W."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, value: Tensor) -> Tensor:
        nap(value, COMPUTED)
        passed: Tensor = SlowReturn.apply(value, COMPUTED)  # type: ignore[no-untyped-call]
        weight: Tensor = SlowReturn.apply(self.weight, WEIGHTS)  # type: ignore[no-untyped-call]
        return passed + weight

    # By these, Weft runs I and W apart; a whole backward is autograd's.

    def input_grad(self, value: Tensor, gradient: Tensor) -> Tensor:
        nap(gradient, COMPUTED)
        return gradient.clone()

    def weight_grad(self, value: Tensor, gradient: Tensor) -> tuple[Tensor]:
        nap(gradient, WEIGHTS)
        return (gradient.sum(0),)


class Exchanged(nn.Module):
    """Half of the rows goes to the other rank, forward and backward."""

    def __init__(self, group: ExpertGroup) -> None:
        super().__init__()
        self._group = group

    def forward(self, value: Tensor) -> Tensor:
        half = [len(value) // self._group.size] * self._group.size
        found: Tensor = self._group.exchange(value, half, half)
        nap(found, MOVED)
        passed: Tensor = SlowReturn.apply(found, MOVED)  # type: ignore[no-untyped-call]
        return passed


class Layer(nn.Module):
    """A stage of one layer."""

    def __init__(self, group: ExpertGroup) -> None:
        super().__init__()
        self.attention, self.dispatch = Computed(), Exchanged(group)
        self.experts, self.combine = Computed(), Exchanged(group)

    @property
    def segments(self) -> list[nn.Module]:
        return [self.attention, self.dispatch, self.experts, self.combine]

    def forward(self, value: Tensor) -> Tensor:
        for segment in self.segments:
            value = segment(value)
        return value


class Seconds(NamedTuple):
    """What the parts of a layer take in F and in I, and what W takes."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    weights: float


KNOWN = Seconds(*[(COMPUTED, MOVED, COMPUTED, MOVED)] * 2, 2 * WEIGHTS)


def cost(stages: int, seconds: Seconds = KNOWN) -> Cost:
    """What such stages take; the first has no gradient of its attention's input to find."""
    none, first = (0.0,) * stages, (0.0, *seconds.backward[1:])
    backward = (first, *[seconds.backward] * (stages - 1))
    return Cost(
        times=Times(
            forward=(sum(seconds.forward),) * stages,
            input_grad=tuple(map(sum, backward)),
            weight_grad=(seconds.weights,) * stages,
            recompute=none,
            update=none,
            reduce=none,
        ),
        memory=Memory(none, none, none, none, none),
        network=Network(0.0),
        parts={"F": _shares(seconds.forward), "I": tuple(map(_shares, backward))},
    )


def _shares(seconds: Sequence[float]) -> Shares:
    attention, dispatch, experts, combine = (part / sum(seconds) for part in seconds)
    return attention, dispatch, experts, combine
