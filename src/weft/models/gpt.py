"""A small GPT as a plain sequence of layers, so that it can be cut into stages anywhere.

    embedding   tokens -> vectors, with their positions added
    block0 ...  attention and a perceptron, each normed first and added to what came in
    head        the last norm, and a score for every sign of the vocabulary

Knows no stage, no device and no microbatch.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.errors import InputError

WIDENING = 4  # of a block's perceptron


def gpt(
    vocabulary: int,
    *,
    layers: int,
    hidden: int,
    heads: int,
    context: int,
    dropout: float = 0.0,
) -> nn.Sequential:
    """A decoder of `layers` blocks: layers + 2 modules, one after the other."""
    if hidden % heads:
        raise InputError(
            f"{heads} heads do not divide a hidden size of {hidden}; make that a multiple of them"
        )
    blocks = [(f"block{index}", Block(hidden, heads, dropout)) for index in range(layers)]
    return nn.Sequential(
        OrderedDict(
            [
                ("embedding", Embedding(vocabulary, context, hidden, dropout)),
                *blocks,
                ("head", Head(hidden, vocabulary)),
            ]
        )
    )


class Embedding(nn.Module):
    """Tokens as vectors, each with its position added."""

    def __init__(self, vocabulary: int, context: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, hidden)
        self.position = nn.Parameter(torch.zeros(context, hidden))
        self.drop = nn.Dropout(dropout)
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        placed: Tensor = self.drop(self.token(tokens) + self.position[: tokens.shape[-1]])
        return placed


class Attention(nn.Module):
    """Every position attends to itself and to those before it."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(hidden, 3 * hidden)
        self.merge = nn.Linear(hidden, hidden)

    def forward(self, value: Tensor) -> Tensor:
        split = self.project(value).unflatten(-1, (3, self.heads, -1))
        query, key, content = (part.transpose(1, 2) for part in split.unbind(2))
        mixed = functional.scaled_dot_product_attention(query, key, content, is_causal=True)
        merged: Tensor = self.merge(mixed.transpose(1, 2).flatten(2))
        return merged


class Block(nn.Module):
    """Attention, then a perceptron."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads)
        self.drop = nn.Dropout(dropout)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(hidden),
            nn.Linear(hidden, WIDENING * hidden),
            nn.GELU(),
            nn.Linear(WIDENING * hidden, hidden),
            nn.Dropout(dropout),
        )

    def forward(self, value: Tensor) -> Tensor:
        attended: Tensor = value + self.drop(self.attention(self.norm(value)))
        out: Tensor = attended + self.perceptron(attended)
        return out


class Head(nn.Module):
    """A score for every sign of the vocabulary."""

    keeps_inputs = True

    def __init__(self, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.score = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, value: Tensor) -> Tensor:
        scores: Tensor = self.score(self.norm(value))
        return scores
