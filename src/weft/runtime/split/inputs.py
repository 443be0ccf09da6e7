"""Inputs: what a model's forward is given, by the names of its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from weft.errors import InputError


class Inputs(NamedTuple):
    """An example of what a model is called with.

    names   the parameters of its forward, in order
    traced  by name, what has tensors in it
    fixed   by name, all else, with defaults for what the example leaves out
    given   the names that the example has
    defaults  by name, what an argument is where it is not given
    """

    names: tuple[str, ...]
    traced: dict[str, Any]
    fixed: dict[str, Any]
    given: frozenset[str]
    defaults: dict[str, Any]

    @property
    def arguments(self) -> dict[str, Any]:
        """The example as keyword arguments."""
        both = {**self.traced, **self.fixed}
        return {name: both[name] for name in self.names if name in self.given}


def inputs_of(model: nn.Module, example: Any) -> Inputs:
    """An example by name: a dict has names, a tuple is spread over the parameters."""
    signature = inspect.signature(model.forward)
    try:
        if isinstance(example, Mapping):
            bound = signature.bind(**example)
        else:
            bound = signature.bind(*example if type(example) is tuple else (example,))
    except TypeError as error:
        raise InputError(
            f"the example does not fit the forward of {type(model).__name__}: {error}; a dict is"
            f" given by name, a tuple as several arguments, all else as one"
        ) from error
    values: dict[str, Any] = {}
    given = set[str]()
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            if name in bound.arguments:
                raise InputError(
                    f"the forward of {type(model).__name__} takes {name} by position alone, and"
                    f" stages get their inputs by name; give the parameter a name"
                )
        elif parameter.kind is parameter.VAR_KEYWORD:
            values |= bound.arguments.get(name, {})
            given |= set(bound.arguments.get(name, {}))
        else:
            values[name] = bound.arguments.get(name, parameter.default)
            given |= {name} & set(bound.arguments)
    traced = {name: value for name, value in values.items() if _has_tensors(value)}
    fixed = {name: value for name, value in values.items() if name not in traced}
    defaults = {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if parameter.default is not parameter.empty
    }
    return Inputs(tuple(values), traced, fixed, frozenset(given), defaults)


def _has_tensors(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(value))
