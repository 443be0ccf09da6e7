"""Cuts by a plan: a model whose stages have the numbers of layers that were planned.

nn.Sequential     [embedding, layer 0 ... layer L-1, head], or the layers alone; of others the
                  run of L modules of one class, with what comes before and after it
Hugging Face      between its layers
any other module  traced, and cut at the first layer of each stage in its one list of L
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Any

from torch import nn

from weft.errors import InputError
from weft.runtime.split import split
from weft.runtime.split.huggingface import Anatomy, is_pretrained
from weft.runtime.split.stages import Stages


def cut_by(model: nn.Module, layers: Sequence[int], example: Any = None) -> Stages:
    """The stages of a model, with that many layers each: the first and last with what is around.

    Stages that are cut already stay as they are; InputError where the model has other layers.
    """
    if is_pretrained(model):
        _check_count(type(model).__name__, len(Anatomy.of(model).layers), layers)
        _check_all_have_some(layers)
        return split(model, stages=len(layers), layers=layers, example=example)
    if isinstance(model, nn.Sequential) and example is None:
        return split(model, stages=len(layers), layers=_modules_of(model, layers))
    if example is None:
        raise InputError(
            f"{type(model).__name__} is neither an nn.Sequential nor of Hugging Face; give"
            " example=, a batch with which it is traced, or its stages as a list"
        )
    _check_all_have_some(layers)
    return split(model, example=example, cuts=_first_layers(model, layers))


def _modules_of(model: nn.Sequential, layers: Sequence[int]) -> list[int]:
    """How many modules each stage gets, of those that a sequence has."""
    before, after = _around(model, sum(layers))
    sizes = [*layers]
    sizes[0] += before
    sizes[-1] += after
    for stage, size in enumerate(sizes):
        if not size:
            raise InputError(f"stage {stage} of the plan has no layer, and nothing else to run")
    return sizes


def _around(model: nn.Sequential, count: int) -> tuple[int, int]:
    """How many modules come before the layers, and how many after."""
    kinds = [type(child) for child in model._modules.values()]
    if len(kinds) == count:
        return 0, 0
    if len(kinds) == count + 2:
        return 1, 1
    runs = [len([*run]) for _, run in groupby(kinds)]
    starts = [*accumulate(runs, initial=0)]
    found = [start for start, length in zip(starts, runs, strict=False) if length == count]
    if len(found) != 1:
        _check_count("this nn.Sequential", max(runs), [count])
        raise InputError(
            f"this nn.Sequential has {len(found)} runs of {count} modules of one class, and it is"
            " not known which are the layers of the plan; give its stages as a list"
        )
    return found[0], len(kinds) - found[0] - count


def _first_layers(model: nn.Module, layers: Sequence[int]) -> list[str]:
    """The name of the first layer of each stage but the first."""
    count, name = sum(layers), type(model).__name__
    lists = {
        path: len(one)
        for path, one in model.named_modules()
        if isinstance(one, nn.ModuleList | nn.Sequential)
    }
    found = [path for path, length in lists.items() if length == count]
    if len(found) != 1:
        _check_count(name, max(lists.values(), default=0), layers)
        raise InputError(
            f"{name} has {len(found)} lists of {count} modules ({', '.join(found)}), and it is not"
            " known which has the layers of the plan; give its stages as a list"
        )
    return [f"{found[0]}.{start}" for start in accumulate(layers[:-1])]


def _check_count(name: str, found: int, layers: Sequence[int]) -> None:
    if found != sum(layers):
        raise InputError(
            f"the plan has {sum(layers)} layers, and {name} has {found}; plan with this model's"
            " config.json, or give a model of as many layers"
        )


def _check_all_have_some(layers: Sequence[int]) -> None:
    if 0 in layers:
        raise InputError(
            f"stage {[*layers].index(0)} of the plan has no layer, and this model is cut between"
            " layers alone; plan with fewer stages"
        )
