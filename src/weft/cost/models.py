"""Models whose sizes are public, each with where they stand.

Sequence and microbatch are those of the published training runs where these are known.
"""

from __future__ import annotations

from dataclasses import replace

from weft.cost.mapping import named
from weft.cost.transformer import Transformer
from weft.errors import InputError

_ZERO_BUBBLE = (
    "arXiv 2401.10241, Table 3; a vocabulary of 32,000, tied, is assumed: the paper has none, and"
    " 27,000 to 35,000 fit the parameters that name the models"
)
_NARAYANAN = "arXiv 2104.04473, Table 1; vocabulary and sequence its section 5.1"

_GPT = Transformer(
    layers=96,
    hidden=12288,
    heads=96,
    ffn=4 * 12288,
    vocabulary=50257,
    sequence=2048,
    is_gated=False,
    is_tied=True,
    source="GPT-3, arXiv 2005.14165, Table 2.1; GPT-2's vocabulary",
)


def _gpt(layers: int, heads: int, hidden: int, **others: object) -> Transformer:
    sizes = {"layers": layers, "heads": heads, "hidden": hidden, "ffn": 4 * hidden}
    derived = {"head_dim": 0, "kv_heads": 0}
    return replace(_GPT, **sizes, **derived, **others)  # type: ignore[arg-type]


def _zero_bubble(layers: int, heads: int, hidden: int, microbatch: int) -> Transformer:
    sizes = {"sequence": 1024, "vocabulary": 32000, "microbatch": microbatch}
    return _gpt(layers, heads, hidden, **sizes, source=_ZERO_BUBBLE)


def _narayanan(layers: int, heads: int, hidden: int) -> Transformer:
    return _gpt(layers, heads, hidden, vocabulary=51200, source=_NARAYANAN)


_DEEPSEEK_V3 = Transformer(
    layers=61,
    hidden=7168,
    heads=128,
    head_dim=128,
    query_rank=1536,
    kv_rank=512,
    rope_dim=64,
    ffn=18432,
    experts=256,
    top_k=8,
    shared_experts=1,
    expert_ffn=2048,
    expert_nodes=4,
    dense_layers=3,
    vocabulary=129280,
    sequence=4096,
    source="arXiv 2412.19437, section 4.2; without its multi-token prediction layer",
)

_KIMI_K2 = replace(
    _DEEPSEEK_V3,
    heads=64,
    kv_heads=64,
    experts=384,
    expert_nodes=0,
    dense_layers=1,
    vocabulary=163840,
    source="arXiv 2507.20534, sections 2.3 and 2.4; latents and vocabulary config.json",
)

_LLAMA_3_405B = Transformer(
    layers=126,
    hidden=16384,
    heads=128,
    kv_heads=8,
    ffn=53248,
    vocabulary=128256,
    sequence=8192,
    source="arXiv 2407.21783, Table 3; vocabulary with its special tokens config.json",
)

_LLAMA_3_8B = replace(
    _LLAMA_3_405B,
    layers=32,
    hidden=4096,
    heads=32,
    head_dim=128,
    ffn=14336,
    source="arXiv 2407.21783, Table 3; vocabulary with its special tokens config.json",
)

_LLAMA_3_70B = replace(_LLAMA_3_8B, layers=80, hidden=8192, heads=64, ffn=28672)

_QWEN_72B = Transformer(
    layers=80,
    hidden=8192,
    heads=64,
    kv_heads=8,
    ffn=29568,
    vocabulary=152064,
    sequence=4096,
    source="Qwen2.5-72B, config.json; sequence arXiv 2501.15383: 4,096 before its long contexts",
)

_QWEN_MOE = Transformer(
    layers=48,
    hidden=2048,
    heads=32,
    kv_heads=4,
    head_dim=128,
    ffn=6144,
    experts=128,
    top_k=8,
    expert_ffn=768,
    vocabulary=151936,
    sequence=4096,
    source="Qwen3-30B-A3B, config.json; sequence of its first two stages arXiv 2505.09388",
)

_MIXTRAL = Transformer(
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    ffn=14336,
    experts=8,
    top_k=2,
    expert_ffn=14336,
    vocabulary=32000,
    sequence=32768,
    source="arXiv 2401.04088, Table 1; config.json has the same",
)

MODELS: dict[str, Transformer] = {
    "gpt-cpu": _gpt(
        *(8, 4, 256),
        vocabulary=8192,
        sequence=128,
        microbatch=4,
        value_bytes=4,
        source="made up: small enough for a CPU, in fp32",
    ),
    "moe-small": Transformer(
        layers=8,
        hidden=64,
        heads=4,
        ffn=192,
        experts=8,
        top_k=2,
        shared_experts=1,
        expert_ffn=64,
        dense_layers=1,
        vocabulary=8192,
        sequence=64,
        microbatch=4,
        value_bytes=4,
        source="made up: a mixture of experts small enough for a demonstration on a CPU, in fp32",
    ),
    "gpt-1.5b": _zero_bubble(22, 24, 2304, microbatch=6),
    "gpt-6.2b": _zero_bubble(30, 32, 4096, microbatch=3),
    "gpt-14.6b": _zero_bubble(46, 40, 5120, microbatch=1),
    "gpt-28.3b": _zero_bubble(62, 48, 6144, microbatch=1),
    "gpt-145.6b": _narayanan(80, 96, 12288),
    "gpt-529.6b": _narayanan(105, 128, 20480),
    "gpt-1008b": _narayanan(128, 160, 25600),
    "gpt-3": _GPT,
    "llama-3-8b": _LLAMA_3_8B,
    "llama-3-70b": _LLAMA_3_70B,
    "llama-3-405b": _LLAMA_3_405B,
    "qwen-2.5-72b": _QWEN_72B,
    "qwen-3-30b-a3b": _QWEN_MOE,
    "mixtral-8x7b": _MIXTRAL,
    "deepseek-v3": _DEEPSEEK_V3,
    "kimi-k2": _KIMI_K2,
}


def add_model(name: str, model: Transformer) -> None:
    """Let a model be known by a name in this process, as the page offers them."""
    if name in MODELS:
        raise InputError(f"{name} is a model already; give the file another name")
    MODELS[name] = model


def model_named(name: str) -> Transformer:
    """The preset of that name; InputError names the nearest."""
    return named(MODELS, name, "model")
