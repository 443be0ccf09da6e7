"""Transformer: the sizes of a model, all that its costs are derived from.

Knows shapes only: no device, no stage, no schedule. `blocks` counts what they come to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.cost.checks import check_count, check_flag, check_text
from weft.cost.mapping import as_mapping, keyword_arguments
from weft.errors import InputError

_MOST_LAYERS = 65_536
_AT_LEAST_ONE = (
    "hidden",
    "heads",
    "ffn",
    "vocabulary",
    "sequence",
    "microbatch",
    "value_bytes",
    "kv_heads",
    "head_dim",
)
_OF_LATENTS = ("query_rank", "kv_rank", "rope_dim")
_OF_EXPERTS = ("experts", "top_k", "shared_experts", "expert_ffn", "expert_nodes")
_FLAGS = ("is_gated", "is_tied", "is_causal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A decoder: an embedding, layers of attention and MLP or experts, a head.

    kv_heads      0 or left out: as many as heads
    head_dim      0 or left out: hidden / heads
    query_rank,   sizes of the latents of multi-head latent attention, and of the rotated part of
    kv_rank,      each head that stands beside head_dim; 0 where attention is plain
    rope_dim
    is_gated      whether an MLP has a gate beside its up and down matrix, as SwiGLU does
    experts       routed experts of a layer, 0 where every layer is dense; each token goes to
                  top_k of them, on at most expert_nodes nodes (0: any), and to shared_experts
    dense_layers  first layers that have an MLP all the same
    is_causal     whether attention skips the half of the scores that its mask removes
    microbatch    sequences of one microbatch, each of `sequence` tokens
    value_bytes   of an activation or a weight on the wire and in products
    """

    layers: int
    hidden: int
    heads: int
    ffn: int
    vocabulary: int
    sequence: int
    microbatch: int = 1
    kv_heads: int = 0
    head_dim: int = 0
    query_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    is_gated: bool = True
    experts: int = 0
    top_k: int = 0
    shared_experts: int = 0
    expert_ffn: int = 0
    expert_nodes: int = 0
    dense_layers: int = 0
    is_tied: bool = False
    is_causal: bool = True
    value_bytes: int = 2
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("hidden", "heads"):
            check_count(getattr(self, name), name, least=1)
        if self.kv_heads == 0:
            object.__setattr__(self, "kv_heads", self.heads)
        if self.head_dim == 0:
            object.__setattr__(self, "head_dim", _head_dim(self.hidden, self.heads))
        _check(self)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> Transformer:
        """The model that keys and values describe; InputError names the key that is wrong."""
        return cls(**keyword_arguments(cls, mapping, "model"))

    def to_mapping(self) -> dict[str, object]:
        """What `from_mapping` reads."""
        return as_mapping(self)

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch."""
        return self.microbatch * self.sequence

    @property
    def is_latent(self) -> bool:
        """Whether keys and values go through a latent (MLA)."""
        return self.kv_rank > 0

    @property
    def message_bytes(self) -> int:
        """What a microbatch sends from stage to stage, either way."""
        return self.tokens * self.hidden * self.value_bytes

    @property
    def dispatch_bytes(self) -> int:
        """What one token sends to its experts in one layer; their combine sends as much back."""
        return self.top_k * self.hidden * self.value_bytes


def _head_dim(hidden: int, heads: int) -> int:
    if hidden % heads:
        raise InputError(f"hidden {hidden} over {heads} heads leaves a rest; give head_dim")
    return hidden // heads


def _check(model: Transformer) -> None:
    check_count(model.layers, "layers", least=1, most=_MOST_LAYERS)
    for name in _AT_LEAST_ONE:
        check_count(getattr(model, name), name, least=1)
    for name in (*_OF_LATENTS, *_OF_EXPERTS, "dense_layers"):
        check_count(getattr(model, name), name)
    for name in _FLAGS:
        check_flag(getattr(model, name), name.removeprefix("is_"))
    check_text(model.source, "source")
    if model.heads % model.kv_heads:
        raise InputError(f"kv_heads {model.kv_heads} does not divide heads {model.heads}")
    if not model.is_latent and (model.query_rank or model.rope_dim):
        raise InputError("query_rank and rope_dim belong to latent attention; give kv_rank too")
    _check_experts(model)


def _check_experts(model: Transformer) -> None:
    if not model.experts:
        given = [name for name in (*_OF_EXPERTS, "dense_layers") if getattr(model, name)]
        if given:
            raise InputError(f"{given[0]} is given, but experts is 0: every layer is dense")
        return
    if not 1 <= model.top_k <= model.experts:
        raise InputError(f"top_k is {model.top_k}; a token goes to 1 to {model.experts} experts")
    if not model.expert_ffn:
        raise InputError("expert_ffn is 0; experts need an inner size")
    if model.dense_layers > model.layers:
        raise InputError(f"dense_layers is {model.dense_layers} of {model.layers} layers")
