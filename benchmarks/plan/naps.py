"""Layers of known duration: they sleep in F, in I and in W, the longer the more rows they get."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from statistics import median

import torch
from ranks_of import SlowReturn, nap
from torch import Tensor, nn

from weft.cost import Cost, Link, Memory, Network, Times

WIDTH = 8
FIXED, EACH = 0.9e-3, 0.7e-3  # seconds of a layer of length 1: at any rate, and for each row
SHARES = {"forward": 1.0, "input_grad": 1.1, "weight_grad": 0.8}
EMBEDDING, HEAD = 0.4, 2.2  # lengths; a layer has 1
CALIBRATION = 40  # naps


def model(layers: int) -> nn.Sequential:
    """An embedding, layers and a head."""
    blocks = [(f"layer{index}", Napping(1.0)) for index in range(layers)]
    ends = ("embedding", Napping(EMBEDDING)), ("head", Napping(HEAD))
    return nn.Sequential(OrderedDict([ends[0], *blocks, ends[1]]))


def batch(rows: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(rows, WIDTH), torch.zeros(rows, WIDTH)


def blocks_cost(layers: int, rows: int, late: Mapping[str, float]) -> Cost:
    """What the blocks take: their naps, and by how much they are late in F, I and W."""
    lengths = [EMBEDDING, *[1.0] * layers, HEAD]
    none = (0.0,) * len(lengths)
    times = {
        name: tuple(_seconds(length, rows, share) + late[name] for length in lengths)
        for name, share in SHARES.items()
    }
    times["input_grad"] = (0.0, *times["input_grad"][1:])  # nothing is before the embedding
    return Cost(
        times=Times(**times, recompute=times["forward"], update=none, reduce=none),
        memory=Memory(none, none, none, none, none),
        network=Network(0.0, default=Link(latency=1e-4)),
    )


def lateness() -> dict[str, float]:
    """By how much F, I and W of a layer are longer than their naps, here and now."""
    layer, value = Napping(1.0), torch.zeros(1, WIDTH, requires_grad=True)
    forwards, backwards = [], []
    for _ in range(CALIBRATION):
        start = time.perf_counter()
        made = layer(value)
        middle = time.perf_counter()
        made.sum().backward()
        forwards.append(middle - start)
        backwards.append(time.perf_counter() - middle)
    naps = {name: _seconds(1.0, 1, share) for name, share in SHARES.items()}
    backward = median(backwards) - naps["input_grad"] - naps["weight_grad"]
    return {
        "forward": median(forwards) - naps["forward"],
        "input_grad": backward / 2,
        "weight_grad": backward / 2,
    }


class Napping(nn.Module):
    """y = x + w, with naps on the way of x and of w, so that I and W come apart."""

    def __init__(self, length: float) -> None:
        super().__init__()
        self.weight, self._length = nn.Parameter(torch.zeros(WIDTH)), length

    def forward(self, value: Tensor) -> Tensor:
        rows = len(value)
        self._nap(value, rows, "forward")
        naps = {name: _seconds(self._length, rows, share) for name, share in SHARES.items()}
        passed: Tensor = SlowReturn.apply(value, naps["input_grad"])
        weight: Tensor = SlowReturn.apply(self.weight, naps["weight_grad"])
        return passed + weight

    # By these, Weft runs I and W apart; a whole backward is autograd's.

    def input_grad(self, value: Tensor, gradient: Tensor) -> Tensor:
        self._nap(gradient, len(value), "input_grad")
        return gradient.clone()

    def weight_grad(self, value: Tensor, gradient: Tensor) -> tuple[Tensor]:
        self._nap(gradient, len(value), "weight_grad")
        return (gradient.sum(0),)

    def _nap(self, value: Tensor, rows: int, name: str) -> None:
        nap(value, _seconds(self._length, rows, SHARES[name]))


def _seconds(length: float, rows: int, share: float) -> float:
    return length * share * (FIXED + EACH * rows)
