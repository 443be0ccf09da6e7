"""Shards: what one processor has of a layer, and what attention and an MLP are made of there.

Each of `tensor` processors has its part of the heads, of the inner sizes and of the vocabulary, and
between matrices its part of the tokens (arXiv 2205.05198, section 4.2.2).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from weft.cost.block import Product
from weft.cost.transformer import Transformer
from weft.errors import InputError

NORM, _RESIDUAL = 2, 3  # values read and written for each one made


class Shard(NamedTuple):
    """What one of `tensor` processors has of a model, which its heads and inner sizes say.

    Hidden size, experts and tokens are those of the whole model.
    """

    model: Transformer
    spread: int
    tensor: int

    def bytes(self, *, whole: float = 0.0, split: float = 0.0) -> float:
        """Bytes of a microbatch: values per token of the processor's part of the tokens, which are
        whole there, and of all tokens, which are split."""
        model = self.model
        return model.tokens * model.value_bytes * (whole / self.tensor + split)


def divided(model: Transformer, tensor: int) -> Transformer:
    """A part of every matrix; the vocabulary is padded, and a key that cannot be shared copied."""
    if tensor == 1:
        return model
    inner = {"heads": model.heads, "ffn": model.ffn}
    inner |= {"expert_ffn": model.expert_ffn} if model.shared_experts else {}
    for name, size in inner.items():
        if size % tensor:
            raise InputError(
                f"{name} {size:,} cannot be split over {tensor} processors; tensor parallelism has"
                f" to divide it"
            )
    return replace(
        model,
        heads=model.heads // tensor,
        kv_heads=math.gcd(-(-model.kv_heads // tensor), model.heads // tensor),
        ffn=model.ffn // tensor,
        vocabulary=-(-model.vocabulary // tensor),
    )


def projections(shard: Shard) -> tuple[Product, ...]:
    """The products before and after the scores; latents are whole on a part of the tokens."""
    model = shard.model
    rows, hidden, heads, dim = model.tokens, model.hidden, model.heads, model.head_dim
    out = Product(rows, heads * dim, hidden)
    if not model.is_latent:
        return (Product(rows, hidden, (heads + 2 * model.kv_heads) * dim), out)
    queries, part = heads * (dim + model.rope_dim), rows / shard.tensor
    rank = model.query_rank
    query = (Product(part, hidden, rank), Product(rows, rank, queries)) if rank else ()
    return (
        *(query or (Product(rows, hidden, queries),)),
        Product(part, hidden, model.kv_rank + model.rope_dim),
        Product(rows, model.kv_rank, 2 * heads * dim),
        out,
    )


def scores(model: Transformer) -> tuple[Product, ...]:
    """Queries with keys, then probabilities with values, for every sequence and head."""
    length, count = model.sequence, model.microbatch * model.heads
    seen = (length + 1) / 2 if model.is_causal else length
    return (
        Product(length, model.head_dim + model.rope_dim, seen, count),
        Product(length, seen, model.head_dim, count),
    )


def mlp(model: Transformer, rows: float, inner: int, count: int = 1) -> tuple[Product, ...]:
    up = 2 * inner if model.is_gated else inner
    return (Product(rows, model.hidden, up, count), Product(rows, inner, model.hidden, count))


def attention_keeps(shard: Shard) -> float:
    """Bytes that attention keeps: all but the scores, which it computes again.

    Both norms' inputs and outputs, the latents' too, queries, keys, values and the output: with
    an MLP's 2 x 4 h this is 32 bytes per token and h, the 34 of arXiv 2205.05198 (section 4.1)
    without its two dropout masks; and each of `tensor` processors has its part of all of it.
    """
    model = shard.model
    heads, dim, rope = model.heads, model.head_dim, model.rope_dim
    key_heads = heads if model.is_latent else model.kv_heads
    read = heads * (dim + rope) + key_heads * (dim + rope) + key_heads * dim
    return shard.bytes(whole=2 * norms(model) + rope, split=read + heads * dim)


def norms(model: Transformer) -> int:
    """Values per token that the norms of a layer make, those of the latents included."""
    return 2 * model.hidden + model.query_rank + model.kv_rank


def activation(model: Transformer, inner: int) -> int:
    """Values per token that the activation function reads and writes; both are kept."""
    return (3 if model.is_gated else 2) * inner


def layer_moves(model: Transformer) -> int:
    """Values per token of two norms and two residuals."""
    return 2 * (NORM + _RESIDUAL) * model.hidden
