"""Mixtral of Hugging Face, and what is built like it, as blocks that show their segments.

Each block runs the modules and weights of a decoder layer: norms, attention and router are called
as they are, and the products of its experts are made of their stacked weights.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.models.moe.blocks import ExpertBlock
from weft.models.moe.experts import Experts, GroupedLinear, held_by, products, products_of_rows
from weft.models.moe.values import Routed
from weft.runtime.experts import ALONE, ExpertGroup

_MODULES = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp.gate", "mlp.experts")


def adapted(model: nn.Module, *, group: ExpertGroup = ALONE) -> nn.Sequential:
    """A causal language model of such layers as embedding, blocks and head, to be cut into stages.

    Tokens have no padding, and no auxiliary loss is computed.
    """
    inner, head = getattr(model, "model", None), getattr(model, "lm_head", None)
    if not hasattr(inner, "layers") or head is None:
        raise InputError(
            f"{type(model).__name__} has no model.layers and lm_head, as MixtralForCausalLM has;"
            f" adapt its decoder layers one by one: adapted_layer(layer, rotary)"
        )
    if getattr(model.config, "output_router_logits", False):
        raise InputError(
            "output_router_logits asks for a loss of the routers, which adapted blocks do not"
            " compute; set it to False, or cut the model with weft.split(model, stages=...)"
        )
    parts: Any = inner
    blocks = [
        (f"block{index}", adapted_layer(layer, parts.rotary_emb, group=group))
        for index, layer in enumerate(parts.layers)
    ]
    ends = ("embedding", parts.embed_tokens), ("head", nn.Sequential(parts.norm, head))
    made = nn.Sequential(OrderedDict([ends[0], *blocks, ends[1]]))
    made.training = model.training
    return made


def adapted_layer(
    layer: nn.Module, rotary: nn.Module, *, group: ExpertGroup = ALONE
) -> ExpertBlock:
    """A block that computes what a decoder layer computes, with the layer's own weights.

    A rank of a larger group has copies of its own experts.
    """
    known = dict(layer.named_modules())
    missing = [name for name in _MODULES if name not in known]
    if missing or not hasattr(known["mlp.experts"], "gate_up_proj"):
        found = missing[0] if missing else "mlp.experts.gate_up_proj"
        raise InputError(
            f"{type(layer).__name__} has no {found}, so it is not built like Mixtral's decoder"
            f" layer; write a block with `segments` of its own"
        )
    experts: Any = known["mlp.experts"]
    up, down = (AdaptedLinear(w, group) for w in (experts.gate_up_proj, experts.down_proj))
    made = ExpertBlock(
        AdaptedAttention(layer, copy.deepcopy(rotary)),
        Experts(up, down, None, group, experts.act_fn),
        group,
    )
    own = {*layer.modules()}  # which stay in the modes that they are in
    for module in made.modules():
        if module not in own:
            module.training = layer.training
    return made


class AdaptedAttention(nn.Module):
    """Norms, attention and router of a decoder layer."""

    keeps_inputs = True

    def __init__(self, layer: Any, rotary: nn.Module) -> None:
        super().__init__()
        self.norm, self.attention = layer.input_layernorm, layer.self_attn
        self.norm_after, self.router = layer.post_attention_layernorm, layer.mlp.gate
        self.rotary = rotary
        self._jitter: float = getattr(layer.mlp, "jitter_noise", 0.0)

    def forward(self, value: Tensor) -> Routed:
        positions = torch.arange(value.shape[1], device=value.device).unsqueeze(0)
        attended, *_ = self.attention(
            hidden_states=self.norm(value),
            position_embeddings=self.rotary(value, position_ids=positions),
            attention_mask=self._mask(value, positions),
        )
        attended = value + attended
        tokens = self.norm_after(attended)
        if self.training and self._jitter > 0:
            low, high = 1 - self._jitter, 1 + self._jitter
            tokens = tokens * torch.empty_like(tokens).uniform_(low, high)
        tokens = tokens.flatten(0, -2)
        _, weights, chosen = self.router(tokens)
        return Routed(attended, tokens, weights, chosen, None)

    def _mask(self, value: Tensor, positions: Tensor) -> Tensor | None:
        """What the model would give to the attention."""
        from transformers import masking_utils

        config = self.attention.config
        is_whole = getattr(config, "sliding_window", None) is None
        name = "create_causal_mask" if is_whole else "create_sliding_window_causal_mask"
        found: Tensor | None = getattr(masking_utils, name)(
            config=config,
            inputs_embeds=value,
            attention_mask=None,
            past_key_values=None,
            position_ids=positions,
        )
        return found


class AdaptedLinear(GroupedLinear):
    """Products with weights that are experts x out x in, as those of nn.Linear are."""

    def __init__(self, weight: nn.Parameter, group: ExpertGroup) -> None:
        nn.Module.__init__(self)
        self.experts, held = len(weight), held_by(group, len(weight))
        own = weight.detach()[held.start : held.stop].clone()
        self.weight = weight if len(held) == self.experts else nn.Parameter(own)

    def reset_parameters(self) -> None:
        raise InputError(
            "weights of adapted blocks are those of the model; initialise or load that before it is"
            " adapted"
        )

    def forward(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        return products(rows, self.weight.mT, sizes)

    def input_grad(self, rows: Tensor, gradient: Tensor, sizes: Sequence[int]) -> Tensor:
        return products(gradient, self.weight.to(gradient.dtype), sizes).to(rows.dtype)

    def weight_grad(
        self, rows: Tensor, gradient: Tensor, sizes: Sequence[int]
    ) -> Sequence[Tensor | None]:
        return (products_of_rows(gradient, rows.to(gradient.dtype), sizes),)
