"""Roles: what a stage is in its program, known when it is built and the same ever after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from weft.runtime.precision import FULL, Precision
from weft.runtime.stage.storage.blocks import HostBlocks
from weft.runtime.weights.versions import Stash

WeightedLoss: TypeAlias = Callable[
    [Any, int], Tensor
]  # of an output and the number of its microbatch


CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What a stage is in its program.

    index             of the stage
    is_first          whether it reads data, which want no gradient
    is_split          whether some of its backwards come in two halves
    has_inputs_alone  whether no other stage reads what it reads
    loss              on the last stage: a forward ends with the microbatch's weighted loss
    judged_by         tensors of a user by which the loss judges a microbatch
    is_loss_drawing   whether the loss may draw random numbers
    stashes           of versions of its weights, one for each group of them
    is_stashing       whether a backward computes with the versions of its forward
    is_after          whether it is a segment that takes what another one of its stage returns
    is_before         whether it is one whose values another one of its stage takes
    is_beside         whether it runs beside the computation, on a stream where nothing may draw
    precision         in which types it computes
    taken             the type of values of floating point as they enter; None: as they are
    handed            the same as they leave, to other stages or to the loss
    blocks            memory of the host for what is offloaded, which stages share
    device            where it computes, if it has no weights to say so
    """

    index: int
    is_first: bool = False
    is_split: bool = False
    has_inputs_alone: bool = True
    loss: WeightedLoss | None = None
    judged_by: Callable[[int], Sequence[Tensor]] = lambda microbatch: ()
    is_loss_drawing: bool = True
    stashes: Sequence[Stash] = ()
    is_stashing: bool = True
    is_after: bool = False
    is_before: bool = False
    is_beside: bool = False
    precision: Precision = FULL
    taken: torch.dtype | None = None
    handed: torch.dtype | None = None
    blocks: HostBlocks = field(default_factory=HostBlocks)
    device: torch.device = CPU
