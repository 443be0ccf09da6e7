"""Blocks: what a transformer is made of.

    embedding | dense layer ... | moe layer ... | head

Parameters are those of matrices: norms, biases and learned positions are below one per cent of any
model here.
"""

from __future__ import annotations

from weft.cost.block import Block, Product
from weft.cost.shard import (
    NORM,
    Shard,
    activation,
    attention_keeps,
    divided,
    layer_moves,
    mlp,
    norms,
    projections,
    scores,
)
from weft.cost.transformer import Transformer
from weft.errors import InputError

_ID_BYTES = 8  # of a token's number
_LOGIT_BYTES = 4  # the loss is taken in fp32 (arXiv 2205.05198, section 4.3)


def blocks(model: Transformer, *, spread: int = 1, tensor: int = 1) -> tuple[Block, ...]:
    """Every block, in order, on one processor.

    spread  groups of processors over which each layer's experts are spread
    tensor  processors of a group: each has its part of the heads, of the inner sizes and of the
            vocabulary, and its part of the tokens between matrices (arXiv 2205.05198, section
            4.2.2); experts stay whole, so that each processor has its part of them
    """
    processors = spread * tensor
    if spread > 1 and not model.experts:
        raise InputError(f"the model has no experts that {spread} groups could share; give 1 group")
    if model.experts % processors:
        raise InputError(
            f"{model.experts} experts of a layer cannot be spread over {processors} processors;"
            f" tensor times expert parallelism has to divide them"
        )
    shard = Shard(divided(model, tensor), spread, tensor)
    dense = model.dense_layers if model.experts else model.layers
    layers = [_dense_layer(shard)] * dense
    if dense < model.layers:
        layers += [_moe_layer(shard)] * (model.layers - dense)
    return (_embedding(shard), *layers, _head(shard))


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


def _embedding(shard: Shard) -> Block:
    model = shard.model
    return Block(
        name="embedding",
        table=model.vocabulary * model.hidden,
        moved=shard.bytes(whole=2 * model.hidden),
        saved=model.tokens * _ID_BYTES,
        inputs=model.tokens * _ID_BYTES,
        gathers=1,
    )


def _dense_layer(shard: Shard) -> Block:
    model = shard.model
    inner = activation(model, model.ffn)
    return Block(
        name="dense",
        linears=(*projections(shard), *mlp(model, model.tokens, model.ffn)),
        scores=scores(model),
        moved=shard.bytes(whole=layer_moves(model), split=inner),
        saved=attention_keeps(shard) + shard.bytes(split=inner),
        cheap=shard.bytes(whole=norms(model), split=model.ffn),
        again=shard.bytes(whole=NORM * norms(model), split=inner),
        inputs=shard.bytes(whole=model.hidden),
        gathers=4,
    )


def _moe_layer(shard: Shard) -> Block:
    """Tokens are routed evenly: each expert sees the tokens of `spread` groups."""
    model = shard.model
    shared = model.shared_experts * model.expert_ffn // shard.tensor
    routed = model.top_k * model.expert_ffn
    rows = model.tokens * model.top_k * shard.spread / model.experts
    permuted = 2 * (model.top_k + 1) * model.hidden
    read = 2 * model.top_k * model.hidden  # what each expert reads and writes
    inner = shard.bytes(whole=activation(model, routed), split=activation(model, shared))
    return Block(
        name="moe",
        linears=(
            *projections(shard),
            Product(model.tokens / shard.tensor, model.hidden, model.experts),
            *(mlp(model, model.tokens, shared) if shared else ()),
        ),
        experts=mlp(model, rows, model.expert_ffn, model.experts // (shard.spread * shard.tensor)),
        scores=scores(model),
        moved=shard.bytes(whole=layer_moves(model) + permuted) + inner,
        saved=attention_keeps(shard) + inner + shard.bytes(whole=read),
        cheap=shard.bytes(whole=norms(model) + routed, split=shared),
        again=shard.bytes(whole=NORM * norms(model)) + inner,
        inputs=shard.bytes(whole=model.hidden),
        routed=model.tokens / shard.tensor * model.dispatch_bytes,
        gathers=4 if shared else 2,
    )


def _head(shard: Shard) -> Block:
    """A norm, the logits and the loss."""
    model = shard.model
    logits = model.tokens * model.vocabulary * _LOGIT_BYTES
    return Block(
        name="head",
        linears=(Product(model.tokens, model.hidden, model.vocabulary),),
        moved=shard.bytes(whole=NORM * model.hidden) + 2 * logits,
        saved=shard.bytes(whole=2 * model.hidden) + logits,
        cheap=shard.bytes(whole=model.hidden),
        again=shard.bytes(whole=NORM * model.hidden),
        inputs=shard.bytes(whole=model.hidden),
        gathers=1,
    )
