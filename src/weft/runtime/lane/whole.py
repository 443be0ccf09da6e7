"""Actions over the whole batch: all microbatches joined, and cut again for whoever reads them.

0F0  0F1  0F2  0F3                        0B0  0B1  0B2  0B3
    \\    \\    |    \\                      |    /    /    /
             1F0-3  --- the loss ---  1B0-3
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.runtime.lane.steps import Forward, summed
from weft.runtime.stage.rows import cut, joined
from weft.runtime.stage.values import Value
from weft.runtime.transport.message import Receive, Send, Values


@dataclass(slots=True, eq=False)
class WholeForward:
    """F of the whole batch, as if it were the first microbatch."""

    _stage: int
    parts: Sequence[Forward]  # of each microbatch, which take and put
    lengths: Sequence[Sequence[int]] = ()  # of every tensor, those of each microbatch
    widths: Sequence[int] = ()  # tensors that came along each edge
    _inputs: Sequence[Value] = ()

    @property
    def number(self) -> int:
        return self.parts[0].number

    def wait(self, lap: int) -> None:
        for part in self.parts:
            part.wait(lap)
        taken = [part.taken() for part in self.parts]
        along = [*zip(*taken, strict=True)]
        self._inputs = [joined(each, f"stage {self._stage}") for each in along]
        leaves = [leaf for each in along for leaf in zip(*(v.leaves for v in each), strict=True)]
        self.lengths = [[*map(len, each)] for each in leaves]
        if not self.parts[0].is_first:
            self.widths = [len(value.leaves) for value in self._inputs]

    def run(self, lap: int) -> None:
        inputs, self._inputs = self._inputs, ()
        output = self.parts[0].compute(lap, inputs)
        if self.parts[0].is_last:
            (loss,) = output.leaves
            for part in self.parts:  # all of it is the first one's
                part.report(lap, loss if part is self.parts[0] else torch.zeros_like(loss))
            return
        for part, value in zip(self.parts, cut(output, self.lengths[0], self._stage), strict=True):
            part.hand_on(value)


@dataclass(slots=True, eq=False)
class WholeBackward:
    """B or I of the whole batch."""

    _forward: WholeForward
    _call: Callable[[int, Values], Values]
    _takes: Sequence[Sequence[Receive]]  # of each microbatch
    _puts: Sequence[Sequence[Send]]  # of each microbatch
    _gradients: Values = (None,)

    def wait(self, lap: int) -> None:
        if any(self._takes):
            forward = self._forward
            arrived = [
                summed(part.in_place([take() for take in takes]))
                for part, takes in zip(forward.parts, self._takes, strict=True)
            ]
            each = zip(*arrived, strict=True)
            self._gradients = [_joined_gradients(one, forward.lengths[0]) for one in each]

    def run(self, lap: int) -> None:
        gradients, self._gradients = self._gradients, (None,)
        forward = self._forward
        passed = self._call(forward.number, gradients)
        pieces = [*map(_cut_gradient, passed, forward.lengths)]
        for number, puts in enumerate(self._puts):
            first = 0
            for put, width in zip(puts, forward.widths, strict=True):
                put(tuple(piece[number] for piece in pieces[first : first + width]))
                first += width


def _joined_gradients(gradients: Sequence[Tensor | None], rows: Sequence[int]) -> Tensor | None:
    """Those of all microbatches; zeros for one that has none, where others have some."""
    one = next((gradient for gradient in gradients if gradient is not None), None)
    if one is None:
        return None
    pairs = zip(gradients, rows, strict=True)
    return torch.cat([one.new_zeros(n, *one.shape[1:]) if g is None else g for g, n in pairs])


def _cut_gradient(gradient: Tensor | None, rows: Sequence[int]) -> Sequence[Tensor | None]:
    if gradient is None:
        return [None] * len(rows)
    return [piece.contiguous() for piece in torch.split(gradient, [*rows])]
