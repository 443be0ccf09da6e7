"""Models of Hugging Face that are built on meta start as those that Hugging Face builds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from weft.errors import InputError
from weft.runtime import Pipeline, split
from weft.schedules import one_f_one_b

WIDTH, LAYERS = 16, 2
SMALL: dict[str, Any] = {
    "vocab_size": 31,
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
}
MODELS: dict[str, tuple[Any, Any]] = {
    "bert": (BertForMaskedLM, BertConfig(**SMALL)),
    "gpt2": (GPT2LMHeadModel, GPT2Config(vocab_size=31, n_embd=WIDTH, n_layer=LAYERS, n_head=2)),
    "llama": (LlamaForCausalLM, LlamaConfig(**SMALL, tie_word_embeddings=True)),
    "mixtral": (MixtralForCausalLM, MixtralConfig(**SMALL, num_key_value_heads=2)),
}
IDS = torch.arange(12).view(2, 6)


def made(name: str, **settings: Any) -> Pipeline:
    """What a pipeline makes of a model that is built on meta and split."""
    kind, config = MODELS[name]
    with torch.device("meta"):
        model = kind(config)
    return Pipeline(split(model, stages=2), one_f_one_b(devices=2, microbatches=1), **settings)


def is_as(pipeline: Pipeline, model: Any) -> bool:
    """Whether a pipeline computes what the whole model computes, bit for bit."""
    with torch.no_grad():
        return torch.equal(pipeline.predict(IDS), model(IDS).logits)


def saved(name: str, folder: Path) -> Any:
    """A model of Hugging Face, saved in shards."""
    kind, config = MODELS[name]
    model = kind(config).eval()
    model.save_pretrained(folder, max_shard_size="8KB")
    assert len([*folder.glob("*.safetensors")]) > 1
    return model


@pytest.mark.parametrize("name", [*MODELS])
def test_a_sharded_checkpoint_gives_the_model_that_was_saved(name: str, tmp_path: Path) -> None:
    """Also what no checkpoint has, such as rotary tables, and experts, which are saved apart."""
    wanted = saved(name, tmp_path)
    assert is_as(made(name, initial=tmp_path), wanted)


def test_a_state_dict_of_the_model_needs_no_conversion() -> None:
    kind, config = MODELS["mixtral"]
    wanted = kind(config).eval()
    assert is_as(made("mixtral", initial=wanted.state_dict()), wanted)


def test_names_of_a_base_model_and_masks_of_earlier_days_are_understood(tmp_path: Path) -> None:
    """As the files of GPT-2 on the hub have them."""
    kind, config = MODELS["gpt2"]
    wanted = kind(config).eval()
    state = {n: t.clone() for n, t in wanted.transformer.state_dict().items()}
    state["h.0.attn.bias"] = torch.ones(1, 1, 8, 8)
    save_file(state, tmp_path / "model.safetensors")
    assert is_as(made("gpt2", initial=tmp_path), wanted)


def test_a_model_that_lacks_an_expert_is_refused(tmp_path: Path) -> None:
    wanted = saved("mixtral", tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    known = json.loads(index.read_text())
    gone = [n for n in known["weight_map"] if ".0." in n and ".experts.1." in n]
    for name in gone:
        del known["weight_map"][name]
    index.write_text(json.dumps(known))
    size = wanted.config.num_local_experts
    with pytest.raises(InputError, match=rf"experts.gate_up_proj \[{size - 1}, .* for \[{size}, "):
        made("mixtral", initial=tmp_path)


@pytest.mark.parametrize("name", [*MODELS])
def test_new_weights_are_spread_as_hugging_face_spreads_them(name: str) -> None:
    kind, config = MODELS[name]
    torch.manual_seed(0)
    modules, wanted = made(name).modules.values(), kind(config).state_dict()
    found = {key: tensor for one in modules for key, tensor in one.state_dict().items()}
    assert found.keys() == wanted.keys()
    for key, tensor in found.items():
        if wanted[key].std() == 0:
            assert torch.equal(tensor, wanted[key]), key
        else:
            assert 0.6 < float(tensor.std() / wanted[key].std()) < 1.6, key
