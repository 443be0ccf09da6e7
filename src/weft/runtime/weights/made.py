"""What functions of a user have made: what no update could use is refused.

Knows what an update calls; knows no parameter groups of stages.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from weft.errors import InputError

EXAMPLE = "optimizer=lambda named: torch.optim.AdamW([weight for _, weight in named])"


def refuse_made(optimizer: object, scheduler: object) -> None:
    """Refuse what is made already, where a function is to make one for each stage."""
    for name, given in (("optimizer", optimizer), ("scheduler", scheduler)):
        if given is not None and not callable(given):
            raise InputError(
                f"{name}= is a {type(given).__name__}, and has to be a function: it is called for"
                f" each stage, on the rank that holds it, as in {EXAMPLE}"
            )


def check_optimizer(made: Optimizer, weights: Sequence[Tensor]) -> None:
    """Refuse what is no optimizer of these weights, or of others as well."""
    if not (hasattr(made, "param_groups") and callable(getattr(made, "step", None))):
        raise InputError(f"optimizer= gives a {type(made).__name__}, no optimizer: {EXAMPLE}")
    given = {id(weight) for weight in weights}
    if any(id(one) not in given for group in made.param_groups for one in group["params"]):
        raise InputError(
            f"optimizer= gives a {type(made).__name__} of weights that it was not called for. It is"
            f" called for the weights of each stage, and each time makes an optimizer of these"
            f" alone: {EXAMPLE}"
        )
    if wanted := _wanted(made):
        raise InputError(
            f"{type(made).__name__}.step() wants {wanted}, which no update has, as a pipeline runs"
            f" the model once for each: use an optimizer whose step() takes nothing"
        )


def check_scheduler(made: LRScheduler | None) -> None:
    """Refuse what cannot step with every update."""
    if made is not None and (wanted := _wanted(made)):
        raise InputError(
            f"{type(made).__name__}.step() wants {wanted}, which no update has: leave scheduler="
            f" out, make one for each of pipeline.optimizers, and step them between steps"
        )


def _wanted(made: Optimizer | LRScheduler) -> str:
    """What its step has to be given."""
    try:
        parameters = inspect.signature(made.step).parameters.values()
    except (TypeError, ValueError):  # it does not say
        return ""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    missing = [p for p in parameters if p.default is p.empty and p.kind not in variable]
    return ", ".join(one.name for one in missing)
