"""Ties: weights that several stages share.

Each end becomes a parameter of its own, on the device of its stage; their gradients are summed
before every update, in the order of the stages, so that all ends stay equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from weft.errors import InputError


class End(NamedTuple):
    """A stage, and the name that the shared weight has there."""

    stage: int
    name: str


def ties_of(stages: Sequence[nn.Module]) -> list[list[End]]:
    """The ends of every weight that is found in more than one stage."""
    found: dict[int, list[End]] = {}
    for stage, module in enumerate(stages):
        for name, weight in module.named_parameters():
            found.setdefault(id(weight), []).append(End(stage, name))
    return [ends for ends in found.values() if len(ends) > 1]


def untie(stages: Sequence[nn.Module], ties: Sequence[Sequence[End]]) -> None:
    """Give every end but the first a parameter of its own."""
    for _, *others in ties:
        for end in others:
            shared = stages[end.stage].get_parameter(end.name)
            if shared._backward_hooks or shared._post_accumulate_grad_hooks:
                raise InputError(
                    f"stage {end.stage} shares {end.name} with an earlier stage, and it has a hook,"
                    f" which would see the gradient of each stage alone; use no hook there, or keep"
                    f" the weight within one stage"
                )
            own = nn.Parameter(shared.detach().clone(), requires_grad=shared.requires_grad)
            for owner in stages[end.stage].modules():
                for name, weight in owner._parameters.items():
                    if weight is shared:
                        owner._parameters[name] = own
