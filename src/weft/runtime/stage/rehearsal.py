"""Rehearsals: whether a layer's forward is its segments, one after the other, and nothing else.

    forward    token 0 ─> attention ─> token 1 ─> dispatch ─> ... ─> what it returns

Segments hand on tokens in place of values. Of a forward that cannot run with these, nothing is
known.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import InputError

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class _Astray(Exception):
    """A segment was given something else than what the one before has returned."""


class _Rehearsed(nn.Module):
    """Stands for a segment."""

    def __init__(self, place: int, tokens: list[Tensor]) -> None:
        super().__init__()
        self._place, self._tokens = place, tokens

    def forward(self, *given: Any) -> Tensor:
        expected = self._tokens[self._place] if self._place < len(self._tokens) else None
        if len(given) == 1 and isinstance(given[0], Tensor) and given[0] is not expected:
            raise _Astray
        self._tokens.append(torch.zeros((), device="cpu"))
        return self._tokens[-1]


def refuse_more(module: nn.Module, segments: Sequence[nn.Module]) -> None:
    """Refuse a layer that does more in its forward: in a program that cuts it that is not done."""
    tokens = [torch.zeros((), device="cpu")]
    try:
        twin = _twin(module, segments, tokens)
        with torch.no_grad():
            returned = type(twin).forward(twin, tokens[0])
        is_chain = returned is tokens[-1] and len(tokens) == len(segments) + 1
    except _Astray:
        is_chain = False
    except Exception:  # it looks into values
        return
    if not is_chain:
        raise InputError(
            f"{type(module).__name__} does more in its forward than to call its segments one after"
            f" the other, which are all of it that runs; let one of them do it"
        )


def _twin(module: nn.Module, segments: Sequence[nn.Module], tokens: list[Tensor]) -> nn.Module:
    """A copy whose segments only hand on tokens, without hooks, which would notice."""
    kept = {id(one): one for one in (*module.parameters(), *module.buffers())}
    places = {id(one): _Rehearsed(place, tokens) for place, one in enumerate(segments)}
    twin = copy.deepcopy(module, {**kept, **places})
    for one in twin.modules():
        for kind in HOOKS:
            getattr(one, kind).clear()
    return twin
