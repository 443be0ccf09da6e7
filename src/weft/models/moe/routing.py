"""Routing: which experts a token goes to, chosen by what was learned, or dealt out for benchmarks.

    learned    the experts with the highest scores
    balanced   all in turn
    skewed     every second token goes to expert 0; all other choices take turns over the rest

Where experts are dealt out, the host knows how many rows each gets, and need not wait for a device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.errors import InputError

LEARNED = "learned"


def _balanced(choice: Any, top: int, experts: int) -> Any:
    return choice % experts


def _skewed(choice: Any, top: int, experts: int) -> Any:
    is_other = choice % (2 * top) > 0  # than the first choice of every second token
    return (1 + choice % (experts - 1)) * is_other


# Which expert each choice gets, given the numbers of all choices, of numpy or of torch.
DEALT: dict[str, Callable[[Any, int, int], Any]] = {"balanced": _balanced, "skewed": _skewed}
LOADS = (LEARNED, *DEALT)


class Router(nn.Module):
    """The experts of each token, the weight of each, and the rows of each expert where known.

    is_renormalised  whether the weights of a token's experts add up to one
    """

    def __init__(
        self, hidden: int, experts: int, top: int, load: str, *, is_renormalised: bool
    ) -> None:
        super().__init__()
        if load not in LOADS:
            raise InputError(f"a router's load is one of {', '.join(LOADS)}, not {load}")
        if not 1 <= top <= experts - (load == "skewed"):
            raise InputError(
                f"a token cannot go to {top} of {experts} experts with a {load} load; choose"
                f" fewer, or add experts"
            )
        self._experts, self._top, self._load = experts, top, load
        self._is_renormalised = is_renormalised
        self.score = nn.Linear(hidden, experts, bias=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, tuple[int, ...] | None]:
        scores = self.score(tokens).softmax(-1, dtype=torch.float32)
        counts = None
        if self._load == LEARNED:
            weights, chosen = scores.topk(self._top)
        else:
            choices = torch.arange(len(tokens) * self._top, device=tokens.device)
            dealt = DEALT[self._load](choices, self._top, self._experts)
            chosen = dealt.view(-1, self._top)
            weights = scores.gather(1, chosen)
            counts = dealt_counts(self._load, len(tokens), self._top, self._experts)
        if self._is_renormalised:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights, chosen, counts


@lru_cache(maxsize=64)
def dealt_counts(load: str, tokens: int, top: int, experts: int) -> tuple[int, ...]:
    """How many rows each expert gets where they are dealt out."""
    dealt = DEALT[load](np.arange(tokens * top), top, experts)
    return tuple(np.bincount(dealt, minlength=experts).tolist())
