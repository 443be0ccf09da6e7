"""Small models of Hugging Face with random weights, and data for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn

WORDS, CLASSES, ROWS, LENGTH = 64, 3, 8, 6

SIZE: dict[str, Any] = {
    "num_hidden_layers": 4,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": WORDS,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}
GROUPED = {**SIZE, "num_key_value_heads": 1}
GPT2: dict[str, Any] = {
    "n_layer": 4,
    "n_embd": 16,
    "n_head": 2,
    "vocab_size": WORDS,
    "n_positions": 32,
}
GPT2 |= {"bos_token_id": 0, "eos_token_id": 0}
QWEN2 = {**GROUPED, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2}
QWEN3 = {**GROUPED, "head_dim": 8, "tie_word_embeddings": True}
MIXTRAL = {**GROUPED, "num_local_experts": 4}
FALCON: dict[str, Any] = {
    name: SIZE[name] for name in ("num_hidden_layers", "hidden_size", "num_attention_heads")
}
FALCON |= {"vocab_size": WORDS}

FAMILIES: dict[str, tuple[str, Mapping[str, Any]]] = {  # a model, and its config
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "llama": ("LlamaForCausalLM", GROUPED),
    "llama-classes": ("LlamaForSequenceClassification", {**GROUPED, "num_labels": CLASSES}),
    "qwen2": ("Qwen2ForCausalLM", QWEN2),
    "qwen3": ("Qwen3ForCausalLM", QWEN3),
    "mixtral": ("MixtralForCausalLM", MIXTRAL),
    "mixtral-balanced": ("MixtralForCausalLM", {**MIXTRAL, "output_router_logits": True}),
    "bert-masked": ("BertForMaskedLM", SIZE),
    "bert-classes": ("BertForSequenceClassification", {**SIZE, "num_labels": CLASSES}),
    "falcon": ("FalconForCausalLM", FALCON),  # its layers return tuples
}
DROPOUT = (
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "hidden_dropout",
    "attention_dropout",
)


def model_of(family: str, *, is_dropping: bool = False, **settings: Any) -> Any:
    """A model with the same weights each time, in train mode."""
    kind, given = FAMILIES[family]
    made: Any = getattr(transformers, kind)
    config = {**given, **settings}
    known = {} if is_dropping else vars(made.config_class(**config))
    return new(kind, {**config, **{name: 0.0 for name in DROPOUT if name in known}})


def new(kind: str, config: Mapping[str, Any]) -> Any:
    """A model of a class of transformers."""
    made: Any = getattr(transformers, kind)
    torch.manual_seed(0)
    return made(made.config_class(**config)).train()


def sentences(family: str, rows: int = ROWS) -> tuple[dict[str, Tensor], Tensor]:
    """Sentences of different lengths, padded, and what is to be learned of them."""
    generator = torch.Generator().manual_seed(rows)
    ids = torch.randint(1, WORDS, (rows, LENGTH), generator=generator)
    lengths = torch.randint(3, LENGTH + 1, (rows, 1), generator=generator)
    mask = (torch.arange(LENGTH) < lengths).long()
    batch = {"input_ids": ids * mask, "attention_mask": mask}
    if family.endswith("classes"):
        return batch, torch.randint(CLASSES, (rows,), generator=generator)
    return batch, ids.masked_fill(mask == 0, -100)


def gradients(modules: list[nn.Module]) -> dict[str, Any]:
    """By every name that a weight has; all have one."""
    return {
        name: weight.grad
        for module in modules
        for name, weight in module.named_parameters(remove_duplicate=False)
    }
