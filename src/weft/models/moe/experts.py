"""Experts: the products of a layer, expert by expert over the rows that each of them gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import starmap

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.errors import InputError
from weft.models.moe.values import Computed, Dispatched
from weft.runtime.experts import ExpertGroup, hold_apart


class GroupedLinear(nn.Module):
    """A product for each expert, whose rows lie one after the other.

    Its weights are experts x in x out. Of all experts it has those `held`; it draws the weights of
    all, one by one, so that they do not depend on how many it has.
    """

    def __init__(self, experts: int, inputs: int, outputs: int, held: range) -> None:
        super().__init__()
        self.experts, self._held = experts, held
        self.weight = nn.Parameter(torch.empty(len(held), inputs, outputs))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        bound = self.weight.shape[1] ** -0.5
        for expert in range(self.experts):
            drawn = torch.empty_like(self.weight[0]).uniform_(-bound, bound)
            if expert in self._held:
                self.weight[self._held.index(expert)] = drawn

    def forward(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """The rows of each expert times its weights."""
        return products(rows, self.weight, sizes)

    # The halves of its backward, as autograd computes them: so weight gradients can come later.

    def input_grad(self, rows: Tensor, gradient: Tensor, sizes: Sequence[int]) -> Tensor:
        weight = self.weight.to(gradient.dtype)  # another one only under autocast
        return products(gradient, weight.mT, sizes).to(rows.dtype)

    def weight_grad(
        self, rows: Tensor, gradient: Tensor, sizes: Sequence[int]
    ) -> Sequence[Tensor | None]:
        return (products_of_rows(rows.to(gradient.dtype), gradient, sizes),)


def products(rows: Tensor, weights: Tensor, sizes: Sequence[int]) -> Tensor:
    """The rows of each expert times its weights, experts x in x out."""
    pairs = zip(rows.split_with_sizes([*sizes]), weights.unbind(), strict=True)
    return torch.cat([*starmap(torch.mm, pairs)])


def products_of_rows(left: Tensor, right: Tensor, sizes: Sequence[int]) -> Tensor:
    """For each expert, the product of its rows of both, over the rows."""
    both = (value.split_with_sizes([*sizes]) for value in (left, right))
    return torch.stack([one.t() @ other for one, other in zip(*both, strict=True)])


class Gated(nn.Module):
    """A perceptron whose width is gated: silu(x G) * (x U), then down."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, value: Tensor) -> Tensor:
        found: Tensor = self.down(gated(self.up(value)))
        return found


def gated(value: Tensor, activation: Callable[[Tensor], Tensor] = functional.silu) -> Tensor:
    gate, content = value.chunk(2, -1)
    return activation(gate) * content


class Experts(nn.Module):
    """The experts of this rank, each for its rows, and a shared one for all own tokens.

    up, down    products of all experts that are here, hidden -> 2 x inner and inner -> hidden
    shared      the expert that all tokens go to, if there is one
    activation  of the gates
    """

    keeps_inputs = True

    def __init__(
        self,
        up: GroupedLinear,
        down: GroupedLinear,
        shared: nn.Module | None,
        group: ExpertGroup,
        activation: Callable[[Tensor], Tensor] = functional.silu,
    ) -> None:
        super().__init__()
        self._group, self._own = group, up.experts // group.size
        self.shared, self.up, self.down, self.activation = shared, up, down, activation
        if group.size > 1:
            hold_apart(self.up, group)
            hold_apart(self.down, group)

    def forward(self, given: Dispatched) -> Computed:
        sizes = self._sizes([sum(column) for column in zip(*given.received, strict=True)])
        rows = self.down(gated(self.up(given.rows, sizes), self.activation), sizes)
        value = given.value
        if self.shared is not None:
            value = value + self.shared(given.tokens).view_as(value)
        return Computed(
            value=value,
            weights=given.weights,
            rows=rows,
            order=given.order,
            place=given.place,
            sent=given.sent,
            received=given.received,
        )

    def _sizes(self, own: list[int]) -> tuple[int, ...]:
        """Rows of all experts that are here; one that belongs to another rank has none."""
        held = len(self.up.weight)
        before = self._group.rank * self._own if held > self._own else 0
        return (*[0] * before, *own, *[0] * (held - before - len(own)))


def held_by(group: ExpertGroup, experts: int) -> range:
    """The experts that a rank builds: its own, or all where one process is every rank."""
    if experts % group.size:
        raise InputError(
            f"{experts} experts cannot be held by {group.size} ranks; a number of ranks that"
            f" divides them can"
        )
    if getattr(group, "is_emulated", False):
        return range(experts)
    own = experts // group.size
    return range(group.rank * own, (group.rank + 1) * own)
