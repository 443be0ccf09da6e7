"""Sums: gradients, added in the order of a program until an update takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce

import torch
from torch import Tensor, nn

from weft.runtime.reference.weights import ByUse, Use
from weft.runtime.stage.deferred import accumulate


class Sums:
    """The gradients of all steps since the last update, by pipe and use of a weight."""

    def __init__(self, uses: Sequence[Use], pipe_of: Sequence[int]) -> None:
        self._uses, self._pipe_of, self._scale = uses, pipe_of, 1.0
        self._by_pipe: dict[Use, dict[int, Tensor]] = {}
        self._before: dict[nn.Parameter, Tensor] = {}  # what a user has not cleared

    def add(
        self,
        gradients: Sequence[ByUse],
        order: Callable[[int], Iterable[int]],
        scale: float,
    ) -> None:
        """Add those of a step's microbatches, in the order of each stage, enlarged by a scale."""
        if not self._by_pipe:
            weights = {use.weight for use in self._uses}
            self._before = {w: w.grad for w in weights if w.grad is not None}
        self._rescale(scale)
        for use in self._uses:
            for microbatch in order(use.stage):
                gradient = gradients[microbatch].get(use)
                if gradient is not None:
                    self._add(use, self._pipe_of[microbatch], gradient)

    def _add(self, use: Use, pipe: int, gradient: Tensor) -> None:
        """As autograd does, with the hooks that see the sum."""
        sums, weight = self._by_pipe.setdefault(use, {}), use.weight
        before, weight.grad = weight.grad, sums.get(pipe)
        accumulate(weight, gradient)
        assert weight.grad is not None
        sums[pipe], weight.grad = weight.grad, before

    def _rescale(self, scale: float) -> None:
        """Let what is there be enlarged as what comes."""
        if scale != self._scale:
            for sums in self._by_pipe.values():
                for total in sums.values():
                    total.mul_(scale / self._scale)
        self._scale = scale

    def hand_over(self) -> None:
        """Give every weight its gradient: pipes summed in order, then the stages that use it."""
        ends: dict[nn.Parameter, list[Tensor]] = {}
        for use in (use for use in self._uses if use in self._by_pipe):
            found = [self._unscaled(total) for _, total in sorted(self._by_pipe[use].items())]
            ends.setdefault(use.weight, []).append(reduce(torch.add, found))
        for weight, totals in ends.items():
            total = reduce(torch.add, totals)
            weight.grad = self._before[weight] + total if weight in self._before else total

    def _unscaled(self, total: Tensor) -> Tensor:
        return total if self._scale == 1 else total * (1 / self._scale)

    def clear(self) -> None:
        """Start anew, with the gradients that the weights have now."""
        self._by_pipe.clear()

    def take_back(self) -> None:
        """Start anew, with the gradients that the weights had before."""
        for use in self._uses:
            use.weight.grad = self._before.get(use.weight)
        self.clear()
