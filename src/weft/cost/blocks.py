"""Blocks: what a transformer is made of, and what one microbatch costs each of them.

    embedding | dense layer ... | moe layer ... | head

Counts FLOPs, parameters and bytes; knows no device and no second. Parameters are those of
matrices: norms, biases and learned positions are below one per cent of any model here.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.cost.transformer import Transformer
from weft.errors import InputError

_ID_BYTES = 8  # of a token's number
_LOGIT_BYTES = 4  # the loss is taken in fp32 (arXiv 2205.05198, section 4.3)
_NORM, _RESIDUAL = 2, 3  # values read and written for each one made


@dataclass(frozen=True, slots=True)
class Product:
    """`count` products of (rows x inner) with (inner x columns)."""

    rows: float
    inner: float
    columns: float
    count: float = 1

    @property
    def flops(self) -> float:
        return 2 * self.rows * self.inner * self.columns * self.count

    @property
    def weights(self) -> float:
        """Parameters, where the right side is a weight."""
        return self.inner * self.columns * self.count


@dataclass(frozen=True, slots=True)
class Block:
    """One microbatch's work in the embedding, a layer or the head, on one device.

    linears  products with weights that every device of a stage holds
    experts  products with the weights of the experts that this device holds
    scores   attention's products of activations with activations, which have no W
    table    parameters that are looked up, not multiplied with
    moved    bytes that norms, residuals, activation functions and permutations move in F
    saved    bytes that F keeps for the backward
    inputs   bytes of what the block reads
    routed   bytes that go to experts in F, and as many back; the backward does it again
    """

    name: str
    linears: tuple[Product, ...] = ()
    experts: tuple[Product, ...] = ()
    scores: tuple[Product, ...] = ()
    table: float = 0.0
    moved: float = 0.0
    saved: float = 0.0
    inputs: float = 0.0
    routed: float = 0.0

    @property
    def shared_parameters(self) -> float:
        """Parameters that every device of a stage holds."""
        return self.table + sum(product.weights for product in self.linears)

    @property
    def expert_parameters(self) -> float:
        return sum(product.weights for product in self.experts)

    @property
    def parameters(self) -> float:
        return self.shared_parameters + self.expert_parameters

    @property
    def forward_flops(self) -> float:
        return self.weight_grad_flops + _flops(self.scores)

    @property
    def input_grad_flops(self) -> float:
        """Scores have two sides, and so two gradients."""
        return self.weight_grad_flops + 2 * _flops(self.scores)

    @property
    def weight_grad_flops(self) -> float:
        return _flops(self.linears) + _flops(self.experts)

    @property
    def flops(self) -> float:
        """Forward and backward, without recomputing anything."""
        return self.forward_flops + self.input_grad_flops + self.weight_grad_flops


def blocks(model: Transformer, *, spread: int = 1) -> tuple[Block, ...]:
    """Every block, in order; each layer's experts are spread over `spread` devices."""
    if spread > 1 and (not model.experts or model.experts % spread):
        raise InputError(f"{model.experts} experts of a layer cannot be spread over {spread}")
    dense = model.dense_layers if model.experts else model.layers
    layers = [_dense_layer(model)] * dense
    if dense < model.layers:
        layers += [_moe_layer(model, spread)] * (model.layers - dense)
    return (_embedding(model), *layers, _head(model))


def parameters(model: Transformer) -> float:
    """Parameters of the whole model; a tied embedding counts once."""
    twice = model.vocabulary * model.hidden if model.is_tied else 0
    return sum(block.parameters for block in blocks(model)) - twice


def active_parameters(model: Transformer) -> float:
    """Parameters that a token is multiplied with; the embedding is only looked up."""
    share = model.top_k / model.experts if model.experts else 0.0
    return sum(
        block.shared_parameters - block.table + share * block.expert_parameters
        for block in blocks(model)
    )


def flops(model: Transformer) -> float:
    """FLOPs of one microbatch, forward and backward."""
    return sum(block.flops for block in blocks(model))


def _embedding(model: Transformer) -> Block:
    return Block(
        name="embedding",
        table=model.vocabulary * model.hidden,
        moved=2 * model.message_bytes,
        saved=model.tokens * _ID_BYTES,
        inputs=model.tokens * _ID_BYTES,
    )


def _dense_layer(model: Transformer) -> Block:
    rows = model.tokens
    return Block(
        name="dense",
        linears=(*_projections(model), *_mlp(model, rows, model.ffn)),
        scores=_scores(model),
        moved=_bytes(model, _layer_moves(model) + _activation(model, model.ffn)),
        saved=_bytes(model, _attention_keeps(model) + _activation(model, model.ffn)),
        inputs=model.message_bytes,
    )


def _moe_layer(model: Transformer, spread: int) -> Block:
    """Tokens are routed evenly: each expert sees the tokens of `spread` devices."""
    shared, routed = model.shared_experts * model.expert_ffn, model.top_k * model.expert_ffn
    rows = model.tokens * model.top_k * spread / model.experts
    permuted = 2 * (model.top_k + 1) * model.hidden
    kept = _attention_keeps(model) + _activation(model, shared + routed)
    kept += 2 * model.top_k * model.hidden  # what each expert reads and writes
    return Block(
        name="moe",
        linears=(
            *_projections(model),
            Product(model.tokens, model.hidden, model.experts),
            *(_mlp(model, model.tokens, shared) if shared else ()),
        ),
        experts=_mlp(model, rows, model.expert_ffn, model.experts // spread),
        scores=_scores(model),
        moved=_bytes(model, _layer_moves(model) + _activation(model, shared + routed) + permuted),
        saved=_bytes(model, kept),
        inputs=model.message_bytes,
        routed=model.tokens * model.dispatch_bytes,
    )


def _head(model: Transformer) -> Block:
    """A norm, the logits and the loss."""
    logits = model.tokens * model.vocabulary * _LOGIT_BYTES
    return Block(
        name="head",
        linears=(Product(model.tokens, model.hidden, model.vocabulary),),
        moved=_bytes(model, _NORM * model.hidden) + 2 * logits,
        saved=_bytes(model, 2 * model.hidden) + logits,
        inputs=model.message_bytes,
    )


def _projections(model: Transformer) -> tuple[Product, ...]:
    """The products before and after the scores."""
    rows, hidden, heads, dim = model.tokens, model.hidden, model.heads, model.head_dim
    out = Product(rows, heads * dim, hidden)
    if not model.is_latent:
        return (Product(rows, hidden, (heads + 2 * model.kv_heads) * dim), out)
    queries = heads * (dim + model.rope_dim)
    rank = model.query_rank
    query = (Product(rows, hidden, rank), Product(rows, rank, queries)) if rank else ()
    return (
        *(query or (Product(rows, hidden, queries),)),
        Product(rows, hidden, model.kv_rank + model.rope_dim),
        Product(rows, model.kv_rank, 2 * heads * dim),
        out,
    )


def _scores(model: Transformer) -> tuple[Product, ...]:
    """Queries with keys, then probabilities with values, for every sequence and head."""
    length, count = model.sequence, model.microbatch * model.heads
    seen = (length + 1) / 2 if model.is_causal else length
    return (
        Product(length, model.head_dim + model.rope_dim, seen, count),
        Product(length, seen, model.head_dim, count),
    )


def _mlp(model: Transformer, rows: float, inner: int, count: int = 1) -> tuple[Product, ...]:
    up = 2 * inner if model.is_gated else inner
    return (Product(rows, model.hidden, up, count), Product(rows, inner, model.hidden, count))


def _attention_keeps(model: Transformer) -> int:
    """Values per token that attention keeps: all but the scores, which it computes again.

    Both norms' inputs and outputs, the latents' too, queries, keys, values and the output: with
    an MLP's 2 x 4 h this is 32 bytes per token and h, the 34 of arXiv 2205.05198 (section 4.1)
    without its two dropout masks.
    """
    heads, dim, rope = model.heads, model.head_dim, model.rope_dim
    key_heads = heads if model.is_latent else model.kv_heads
    latents = 2 * (model.query_rank + model.kv_rank) + rope
    read = heads * (dim + rope) + key_heads * (dim + rope) + key_heads * dim
    return 4 * model.hidden + latents + read + heads * dim


def _activation(model: Transformer, inner: int) -> int:
    """Values per token that the activation function reads and writes; both are kept."""
    return (3 if model.is_gated else 2) * inner


def _layer_moves(model: Transformer) -> int:
    """Values per token of two norms and two residuals."""
    return 2 * (_NORM + _RESIDUAL) * model.hidden


def _bytes(model: Transformer, values: int) -> float:
    """Bytes of a microbatch that has this many values per token."""
    return model.tokens * values * model.value_bytes


def _flops(products: tuple[Product, ...]) -> float:
    return sum(product.flops for product in products)
