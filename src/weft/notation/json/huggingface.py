"""Hugging Face's config.json, read as the model that it describes.

    {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, ...}

Families call the same size by different names; each has a row below. What is of no matter for costs
is passed over. Reads numbers alone: no code of a model is loaded.
"""

from __future__ import annotations

from weft.cost import Transformer
from weft.errors import NotationError
from weft.notation.json.reading import Node

NAMES = {  # of Weft, and those of Hugging Face, the usual one first
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim"),
    "vocabulary": ("vocab_size",),
    "sequence": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("qk_nope_head_dim", "head_dim"),
    "query_rank": ("q_lora_rank",),
    "kv_rank": ("kv_lora_rank",),
    "rope_dim": ("qk_rope_head_dim",),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "top_k": ("num_experts_per_tok", "moe_top_k"),
    "shared_experts": ("n_shared_experts",),
    "expert_ffn": ("moe_intermediate_size", "intermediate_size"),
    "expert_nodes": ("topk_group",),
    "dense_layers": ("first_k_dense_replace",),
}
NEEDED = ("layers", "hidden", "heads", "vocabulary")
OF_EXPERTS = ("top_k", "shared_experts", "expert_ffn", "expert_nodes", "dense_layers")
OF_LATENTS = ("query_rank", "rope_dim")
ENCODERS = frozenset(
    ("albert", "bert", "deberta", "deberta-v2", "distilbert", "electra", "roberta", "xlm-roberta")
)
UNGATED = ENCODERS | {
    *("bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "mpt", "opt", "phi"),
    "starcoder2",
}
UNTIED = frozenset(
    ["falcon", "gpt_neox", "gptj", "llama", "mistral", "mixtral", "phi", "qwen2_moe", "qwen3_moe"]
)
LONGEST = 4096  # tokens of a sequence, where a model could read far more than it is trained on
BYTES = {"float32": 4, "float64": 8}  # of a value; others have two


def is_config(node: Node) -> bool:
    """Whether it is one of Hugging Face's."""
    found = node.value
    return isinstance(found, dict) and "model_type" in found and "format" not in found


def read_config(node: Node) -> Transformer:
    """The model of a config."""
    members = node.members_of_any_name()
    kind = members["model_type"].text()
    sizes = {ours: found for ours, names in NAMES.items() if (found := _count(members, names))}
    lacking = [NAMES[name][0] for name in NEEDED if name not in sizes]
    if lacking:
        raise NotationError(
            f"a config of {kind!r} without {', '.join(lacking)}; write out what it leaves to the"
            f" defaults of its family"
        )
    sizes.setdefault("ffn", 4 * sizes["hidden"])
    sizes["sequence"] = min(sizes.get("sequence", LONGEST), LONGEST)
    for group, needs in ((OF_EXPERTS, "experts"), (OF_LATENTS, "kv_rank")):
        if needs not in sizes:
            sizes = {name: size for name, size in sizes.items() if name not in group}
    dtype = members.get("dtype", members.get("torch_dtype", Node("bfloat16"))).value
    return Transformer(
        **sizes,
        is_gated=kind not in UNGATED,
        is_tied=_flag(members, "tie_word_embeddings", usual=kind not in UNTIED),
        is_causal=kind not in ENCODERS,
        value_bytes=BYTES.get(str(dtype), 2),
        source=f"config.json of a {kind}",
    )


def _count(members: dict[str, Node], names: tuple[str, ...]) -> int:
    """The first of these that is given, and not left open; else 0."""
    given = (members[name] for name in names if name in members)
    return next((node.count() for node in given if node.value is not None), 0)


def _flag(members: dict[str, Node], name: str, *, usual: bool) -> bool:
    node = members.get(name)
    return usual if node is None or node.value is None else node.flag()
