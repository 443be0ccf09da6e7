"""Splitting: a model becomes stages that compute what it computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from weft.errors import InputError
from weft.runtime.split.compare import compared
from weft.runtime.split.huggingface import is_pretrained, layered
from weft.runtime.split.sequential import sliced
from weft.runtime.split.shrunken import called_plainly, compared_shrunken
from weft.runtime.split.stages import Stages
from weft.runtime.split.traced import cut_by_tracing

__all__ = ["Stages", "compared", "split"]


def split(
    model: nn.Module,
    *,
    stages: int | None = None,
    layers: Sequence[int] | None = None,
    example: Any = None,
    cuts: Sequence[str] | None = None,
    balance: str = "parameters",
    branches: bool = False,
    trace: str = "auto",
    check: bool = True,
) -> Stages:
    """The stages of a model, which compute what it computes.

    An `nn.Sequential` is cut between its layers: into `stages` slices, or by `layers`, the number
    of layers of each; so is a Hugging Face model. Any other module is traced with an example.

    example   what the model is called with: a dict by name, a tuple as several arguments
    stages    how many there are
    cuts      names of modules that begin a stage, in place of a balanced cut
    balance   what stages have about the same of: "parameters", "flops" or measured "time"
    branches  whether parts that do not read each other become stages of their own, which can run
              at the same time
    trace     "modules": stages are made of the model's own modules; "export": of operators, by
              torch.export; "auto": of operators, where the modules cannot be followed
    check     whether outputs and gradients of the stages are compared with the model's, on the
              example, or of a Hugging Face model on a small one of the same class;
              `Stages.checked` says what was compared
    """
    if is_pretrained(model):
        return _layered(model, stages, layers, example, check=check)
    if example is not None:
        if layers is not None:
            raise InputError("layers cut an nn.Sequential without an example; use cuts=[...]")
        return cut_by_tracing(
            model,
            example,
            stages=stages,
            cuts=cuts,
            balance=balance,
            branches=branches,
            trace=trace,
            check=check,
        )
    if not isinstance(model, nn.Sequential):
        raise InputError(
            f"{type(model).__name__} is not an nn.Sequential; give example=, a batch with which it"
            f" is traced, or a list of modules, one per stage"
        )
    if stages is None:
        raise InputError("give the number of stages")
    return sliced(model, stages=stages, layers=layers)


def _layered(
    model: nn.Module,
    stages: int | None,
    layers: Sequence[int] | None,
    example: Any,
    *,
    check: bool,
) -> Stages:
    if stages is None:
        raise InputError("give the number of stages")
    made = layered(model, stages=stages, layers=layers)
    if check and example is not None:
        made.checked = compared(model, made, example, call=called_plainly)
    elif check:
        made.checked = compared_shrunken(model, stages)
    return made
