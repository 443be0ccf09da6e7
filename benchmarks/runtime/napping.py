"""Naps: what takes a known time, forward or backward, and no core."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn


def nap(value: Tensor, seconds: float) -> None:
    """Sleep, but where shapes alone are found."""
    if not value.is_meta and type(value) in (Tensor, nn.Parameter):
        time.sleep(seconds)


class SlowReturn(torch.autograd.Function):
    """The same value, with a nap on the way back."""

    @staticmethod
    def forward(context: Any, value: Tensor, seconds: float) -> Tensor:
        context.seconds = seconds
        return value.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        nap(gradients[0], context.seconds)
        return gradients[0].clone(), None
