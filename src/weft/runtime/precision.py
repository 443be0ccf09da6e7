"""Precision: in which types stages compute, values travel, and losses are computed.

                  compute copies   between stages       the loss         losses are scaled
    (none)        -                as returned          as returned      -
    bf16          bfloat16         bfloat16             float32          -
    fp16          float16          float16              float32          by Scale()
    autocast      -                as returned          under autocast   -

Whatever it is, optimizers change the weights themselves, in whose type gradients add up and norms
are computed. Knows types; knows neither stages at work nor programs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from weft.errors import InputError
from weft.runtime.weights.scaling import Scale

SINGLE = torch.float32.itemsize
MIXED = re.compile(r"dtype|scalar type|same type")

AskedPrecision: TypeAlias = Literal["bf16", "fp16", "autocast"] | torch.dtype | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """In which types a model computes.

    compute   of the copies of weights that stages compute with, and of what passes between stages;
              None leaves both as they are
    autocast  what torch casts to within forwards and losses; None: nothing
    scale     of losses, unless the user gives one
    """

    compute: torch.dtype | None = None
    autocast: torch.dtype | None = None
    scale: Scale | None = None

    @property
    def judged(self) -> torch.dtype | None:
        """The type in which the loss gets what the last stage returns: float32, or a wider one."""
        return None if self.compute is None else torch.promote_types(self.compute, torch.float32)

    def types_of(self, module: nn.Module) -> dict[str, torch.dtype]:
        """What the weights of a stage are computed with, by name, where that may be another type.

        Those of a norm with running statistics stay as they are: torch mixes values of half
        precision with weights and statistics of single precision there, and nothing else.
        """
        if self.compute is None:
            return {}
        norms = [one for one in module.modules() if _has_statistics(one)]
        kept = {id(weight) for norm in norms for weight in norm.parameters(recurse=False)}
        return {
            name: self.compute
            for name, weight in module.named_parameters()
            if weight.is_floating_point() and id(weight) not in kept
        }

    def check(self, stages: Sequence[nn.Module]) -> None:
        """Refuse weights in which the gradients of microbatches cannot be added up."""
        if self.compute is None or self.compute.itemsize >= SINGLE:
            return
        for index, stage in enumerate(stages):
            for name, weight in stage.named_parameters():
                if weight.requires_grad and weight.dtype.itemsize < SINGLE:
                    raise InputError(
                        f"stage {index} learns {name} in {short(weight.dtype)}, and a precision has"
                        f" copies of weights in such a type, while the weights themselves and sums"
                        f" of their gradients are float32; give the model in float32"
                        f" (model.float()), or leave precision= out to train it as it is"
                    )


FULL = Precision()
NAMED: dict[str, Precision] = {
    "bf16": Precision(compute=torch.bfloat16),
    "fp16": Precision(compute=torch.float16, scale=Scale()),
    "autocast": Precision(autocast=torch.bfloat16),
}


def precision_of(asked: AskedPrecision | Precision) -> Precision:
    """The precision that a user asks for, by name or by the type that stages compute with."""
    if asked is None or isinstance(asked, Precision):
        return asked or FULL
    if isinstance(asked, torch.dtype):
        if not asked.is_floating_point:
            raise InputError(f"stages compute with floating point, not {asked}")
        named = (one for one in NAMED.values() if one.compute is asked)
        return next(named, Precision(compute=asked))
    if asked not in NAMED:
        raise InputError(f"precision is one of {', '.join(NAMED)}, or None, not {asked!r}")
    return NAMED[asked]


def cast(leaf: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A value in another type, if it is of floating point at all; None is its own."""
    return leaf.to(dtype) if dtype is not None and leaf.is_floating_point() else leaf


class NotMixed:
    """Where a stage runs that may mix types which torch does not; that is refused with a remedy."""

    def __init__(self, stage: int, module: nn.Module, precision: Precision) -> None:
        self._stage, self._module, self._compute = stage, module, precision.compute

    def __enter__(self) -> None:
        """Nothing is wrong yet."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._compute is None or not isinstance(error, RuntimeError):
            return
        if MIXED.search(str(error)):
            raise InputError(
                f"stage {self._stage} computes in {short(self._compute)}, and mixes it with other"
                f" types: {error}.{self._wider()} Cast where they meet (table.to(value.dtype)), or"
                f" use precision='autocast'"
            ) from error

    def _wider(self) -> str:
        floating = ((n, b) for n, b in self._module.named_buffers() if b.is_floating_point())
        found = [name for name, buffer in floating if buffer.dtype != self._compute]
        return f" Its buffers keep their types: {', '.join(found)}." if found else ""


def _has_statistics(module: nn.Module) -> bool:
    return isinstance(module, _NormBase) and module.running_mean is not None


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
