"""Results: what a step gave, looked at only when somebody asks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from weft.cost import Share
from weft.errors import InputError
from weft.ir.program import Program
from weft.runtime.ranks.clock import Recording
from weft.runtime.ranks.losses import Ledger, Losses
from weft.timeline import Timeline


@dataclass(frozen=True)
class Result:
    """What a step gave.

    norm        of all gradients before clipping, where they are clipped
    is_skipped  whether the update was left out because the loss or the norm is not finite
    """

    norm: Tensor | None
    is_skipped: bool
    _page: Losses = field(repr=False)
    _ledger: Ledger = field(repr=False)
    _recording: Recording | None = field(repr=False)
    _program: Program = field(repr=False)
    _dtype: torch.dtype = field(repr=False)

    @cached_property
    def losses(self) -> Tensor:
        """The weighted loss of every microbatch, on every rank; waits until they are known."""
        return torch.tensor(self._ledger.wait(self._page), dtype=torch.float64).to(self._dtype)

    @cached_property
    def loss(self) -> Tensor:
        """The loss of the batch, on every rank."""
        return self.losses.sum()

    @cached_property
    def timeline(self) -> Timeline:
        """When this process did what; `Pipeline.gathered` has all ranks."""
        if self._recording is None:
            raise InputError(
                "the actions of an asynchronous step are spread over several calls; the flight that"
                " Pipeline.drain() returns has their timeline"
            )
        start, end = self._recording.seconds()
        return Timeline(self._program, Share().cost(self._program), start, end, is_measured=True)

    @property
    def bad_loss(self) -> str | None:
        """What the loss is and by which microbatches, where it is not finite."""
        if torch.isfinite(self.loss):
            return None
        bad = [index for index, loss in enumerate(self.losses.tolist()) if not math.isfinite(loss)]
        which = ", ".join(map(str, bad[:8])) + (" ..." if len(bad) > 8 else "")
        where = f", by microbatch {which}" if bad else ""
        return f"{float(self.loss):g}{where}"
