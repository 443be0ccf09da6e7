"""Makers: how a user's optimizers and learning-rate schedulers come to be, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

NamedParameters: TypeAlias = Iterable[tuple[str, nn.Parameter]]
Nonfinite: TypeAlias = Literal["stop", "skip", "ignore"]


class Makers(NamedTuple):
    """Functions of the user, or nothing."""

    optimizer: Callable[[NamedParameters], Optimizer] | None
    scheduler: Callable[[Optimizer], LRScheduler] | None

    def both(
        self, named: Sequence[tuple[str, nn.Parameter]]
    ) -> tuple[Optimizer | None, LRScheduler | None]:
        """Of some weights, if there are any to learn."""
        if self.optimizer is None or not any(weight.requires_grad for _, weight in named):
            return None, None
        made = self.optimizer(named)
        return made, self.scheduler(made) if self.scheduler else None
