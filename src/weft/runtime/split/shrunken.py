"""Shrunken models: stages of a Hugging Face model, compared on a small one of the same class.

The small one has the code of the large one and a layer for each stage, so that a comparison takes
neither its memory nor its time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from weft.runtime.split.compare import compared
from weft.runtime.split.hollow import returned
from weft.runtime.split.huggingface import layered

SIZES = {  # what a small model has at most, by the usual name in a config
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 4,
}
ROWS, LENGTH = 2, 8
UNKNOWN = "not compared"

_FOUND: dict[object, str] = {}


def compared_shrunken(model: nn.Module, stages: int) -> str:
    """Refuse stages that would not compute what the model computes; what was compared.

    Once for each class and config in a process.
    """
    whole: Any = model
    key = (type(model), whole.config.to_json_string(), model.training, stages)
    if key not in _FOUND:
        _FOUND[key] = _compared(model, stages)
    return _FOUND[key]


def _compared(model: nn.Module, stages: int) -> str:
    try:
        small = _shrunken(model, stages)
    except Exception:  # of a family that has other sizes, which do not fit together
        return UNKNOWN
    vocabulary = small.config.get_text_config().vocab_size
    ids = torch.arange(ROWS * LENGTH).reshape(ROWS, LENGTH) * 7 % vocabulary
    mask = torch.ones_like(ids)
    mask[-1, LENGTH // 2 :] = 0
    example = {"input_ids": ids, "attention_mask": mask}
    compared(small, layered(small, stages=stages), example, call=called_plainly)
    return "by value, on a shrunken config"


def called_plainly(model: nn.Module, given: Any) -> Any:
    """What a model returns for a batch, as its last stage does."""
    named = given if isinstance(given, dict) else {"input_ids": given}
    return returned(model(**named, return_dict=True))


def _shrunken(model: Any, stages: int) -> Any:
    """A small model of the same class, without dropout."""
    config = model.config
    known = config.to_dict() | {name: getattr(config, name, None) for name in SIZES}
    changed: dict[str, Any] = {
        name: min(most, known[name])
        for name, most in SIZES.items()
        if type(known[name]) is int and known[name] > 0 and _can_set(config, name)
    }
    changed["num_hidden_layers"] = stages
    if known["num_key_value_heads"] == known["num_attention_heads"]:
        changed["num_key_value_heads"] = changed["num_attention_heads"]
    for name, one in known.items():
        if "drop" in name and isinstance(one, float):
            changed[name] = 0.0
        if name.endswith("_token_id"):
            changed[name] = 0 if isinstance(one, int) else None
        if name == "layer_types" and isinstance(one, list):
            changed[name] = one[:stages]
    plain = {name: one for name, one in config.to_dict().items() if name not in changed}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = type(model)(type(config)(**{**plain, **changed}))
    return made.float().train(model.training)


def _can_set(config: Any, name: str) -> bool:
    """Whether a size is one of the config, and no property of others."""
    return not isinstance(getattr(type(config), name, None), property)
