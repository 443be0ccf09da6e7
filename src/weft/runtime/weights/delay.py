"""Delay: what a pipeline does about weights and gradients that come late."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from weft.errors import InputError
from weft.runtime.weights.scaling import Scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """How an asynchronous schedule trains.

    warmup     so many updates are flushed and synchronous; those behind start from there
    predict    forwards start from where the weights will be, if every update is like the last
               (SpecTrain, XPipe); costs a copy of the weights
    temper     updates in which a stage's learning rate grows from lr / lag to lr (PipeMare)
    precision  what stages compute with; stashed weights are of that type, the newest are kept
               in their own beside them
    scale      losses are enlarged so much, for half precision; a number never changes
    """

    warmup: int = 0
    predict: bool = False
    temper: int | None = None
    precision: torch.dtype | None = None
    scale: Scale | float | None = None

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise InputError(f"a warm-up of {self.warmup} updates; use 0 or more")
        if self.temper is not None and self.temper < 1:
            raise InputError(f"rates tempered for {self.temper} updates; use 1 or more")
        if self.precision is not None and not self.precision.is_floating_point:
            raise InputError(f"stages compute with floating point, not {self.precision}")
