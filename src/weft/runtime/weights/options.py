"""What a user asks of updates and of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from weft.errors import InputError
from weft.runtime.precision import FULL, Precision
from weft.runtime.weights.made import check_optimizer, check_scheduler, refuse_made
from weft.runtime.weights.scaling import Scale

NamedParameters: TypeAlias = Iterable[tuple[str, nn.Parameter]]
Nonfinite: TypeAlias = Literal["stop", "skip", "ignore"]
Reduction: TypeAlias = Literal["ordered", "library"]
Scope: TypeAlias = Literal["global", "group", "stage"]  # widest first


class Factories(NamedTuple):
    """Functions of the user that make optimizers and schedulers, or nothing."""

    optimizer: Callable[[NamedParameters], Optimizer] | None = None
    scheduler: Callable[[Optimizer], LRScheduler] | None = None

    def both(
        self, named: Sequence[tuple[str, nn.Parameter]]
    ) -> tuple[Optimizer | None, LRScheduler | None]:
        """Of some weights, if there are any to learn."""
        if self.optimizer is None or not any(weight.requires_grad for _, weight in named):
            return None, None
        refuse_made(self.optimizer, self.scheduler)
        made = self.optimizer(named)
        check_optimizer(made, [weight for _, weight in named])
        scheduler = self.scheduler(made) if self.scheduler else None
        check_scheduler(scheduler)
        return made, scheduler


NO_FACTORIES = Factories()


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """What an asynchronous program does about weights and gradients that are stale.

    warmup   as many updates at first are synchronous; those after them start from there
    predict  forwards start from where the weights will be, if every update is like the last
             (SpecTrain, XPipe); costs a copy of the weights
    temper   updates in which a stage's learning rate grows from lr / staleness to lr (PipeMare)
    """

    warmup: int = 0
    predict: bool = False
    temper: int | None = None

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise InputError(f"a warm-up of {self.warmup} updates; use 0 or more")
        if self.temper is not None and self.temper < 1:
            raise InputError(f"rates tempered for {self.temper} updates; use 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Updating:
    """How weights are updated: what a user asks for, all of it.

    clip       the largest norm of the gradients; `clip_by` says whose
    nonfinite  what to do when a loss or a norm is not finite
    precision  in which types stages compute, and values pass between them
    scale      by how much losses are enlarged, for half precision
    is_sharded whether copies of a stage share its optimizer state
    reduction  in whose order gradients of copies are summed: the pipes', or the library's
    """

    factories: Factories = NO_FACTORIES
    clip: float | None = None
    clip_by: Scope | None = None
    nonfinite: Nonfinite = "stop"
    staleness: Staleness | None = None
    precision: Precision = FULL
    scale: Scale | float | None = None
    is_sharded: bool = False
    reduction: Reduction = "ordered"

    def __post_init__(self) -> None:
        if self.reduction not in get_args(Reduction):
            known = " or ".join(map(repr, get_args(Reduction)))
            raise InputError(f"reduce={self.reduction!r} is not known; use {known}")

    @property
    def is_measuring(self) -> bool:
        """Whether updates depend on norms."""
        return self.clip is not None or self.scale is not None
