"""Blocks: dense and expert layers, each of which shows its segments."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from weft.errors import InputError
from weft.models.gpt import Attention, Embedding, Head
from weft.models.moe.exchange import Combine, Dispatch
from weft.models.moe.experts import Experts, Gated, GroupedLinear, held_by
from weft.models.moe.routing import LEARNED, Router
from weft.models.moe.values import Routed
from weft.runtime.experts import ALONE, ExpertGroup


def moe(
    vocabulary: int,
    *,
    layers: int,
    hidden: int,
    heads: int,
    context: int,
    experts: int,
    top: int,
    dense: int = 1,
    inner: int | None = None,
    shared: int = 1,
    dropout: float = 0.0,
    load: str = LEARNED,
    is_renormalised: bool = True,
    group: ExpertGroup = ALONE,
) -> nn.Sequential:
    """A decoder of `layers` blocks, the first `dense` of them without experts: layers + 2 modules.

    top              experts of each token
    inner            width of an expert; a dense layer is as wide as a token's experts together
    shared           how many times as wide the expert is that all tokens go to; 0 for none
    load             of the experts: "learned", or dealt out "balanced" or "skewed" for benchmarks,
                     which all ranks of a group do for as many tokens
    is_renormalised  whether the weights of a token's experts add up to one
    group            the ranks that have some of the experts each
    """
    if hidden % heads:
        raise InputError(
            f"{heads} heads do not divide a hidden size of {hidden}; make that a multiple of them"
        )
    width = hidden if inner is None else inner
    blocks: list[tuple[str, nn.Module]] = []
    for index in range(layers):
        attention = Attended(hidden, heads, dropout)
        if index < dense:
            block: nn.Module = DenseBlock(attention, hidden, (top + shared) * width, dropout)
        else:
            router = Router(hidden, experts, top, load, is_renormalised=is_renormalised)
            routed = RoutedAttention(attention, router, hidden)
            block = ExpertBlock(routed, _experts(experts, hidden, width, shared, group), group)
        blocks.append((f"block{index}", block))
    first = ("embedding", Embedding(vocabulary, context, hidden, dropout))
    return nn.Sequential(OrderedDict([first, *blocks, ("head", Head(hidden, vocabulary))]))


def _experts(experts: int, hidden: int, inner: int, shared: int, group: ExpertGroup) -> Experts:
    held = held_by(group, experts)
    return Experts(
        GroupedLinear(experts, hidden, 2 * inner, held),
        GroupedLinear(experts, inner, hidden, held),
        Gated(hidden, shared * inner) if shared else None,
        group,
    )


class Attended(nn.Module):
    """What comes in, with attention to it added."""

    keeps_inputs = True

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads)
        self.drop = nn.Dropout(dropout)

    def forward(self, value: Tensor) -> Tensor:
        attended: Tensor = value + self.drop(self.attention(self.norm(value)))
        return attended


class Perceptron(nn.Module):
    """What comes in, with a perceptron of it added."""

    keeps_inputs = True

    def __init__(self, hidden: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.gated = Gated(hidden, inner)
        self.drop = nn.Dropout(dropout)

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = value + self.drop(self.gated(self.norm(value)))
        return out


class RoutedAttention(nn.Module):
    """Attention, and the experts of each token."""

    keeps_inputs = True

    def __init__(self, attended: Attended, router: Router, hidden: int) -> None:
        super().__init__()
        self.attended, self.norm, self.router = attended, nn.LayerNorm(hidden), router

    def forward(self, value: Tensor) -> Routed:
        attended = self.attended(value)
        tokens = self.norm(attended).flatten(0, -2)
        weights, chosen, counts = self.router(tokens)
        return Routed(attended, tokens, weights, chosen, counts)


class DenseBlock(nn.Module):
    """Attention, then a perceptron."""

    def __init__(self, attention: Attended, hidden: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.attention = attention
        self.perceptron = Perceptron(hidden, inner, dropout)

    @property
    def segments(self) -> list[nn.Module]:
        return [self.attention, self.perceptron]

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.perceptron(self.attention(value))
        return out


class ExpertBlock(nn.Module):
    """Attention, then the experts of each token."""

    def __init__(self, attention: nn.Module, experts: Experts, group: ExpertGroup) -> None:
        super().__init__()
        self.attention, self.dispatch = attention, Dispatch(experts.up.experts, group)
        self.experts, self.combine = experts, Combine(group)

    @property
    def segments(self) -> list[nn.Module]:
        return [self.attention, self.dispatch, self.experts, self.combine]

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.combine(self.experts(self.dispatch(self.attention(value))))
        return out
