"""Configs of Hugging Face as models: sizes against the parameters that the real models have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import weft, weft_json
from weft.cost.blocks import active_parameters, parameters
from weft.cost.models import MODELS
from weft.errors import NotationError
from weft.notation import read_model
from weft.web.answers import catalogue, timelines

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "rope_scaling": {"factor": 8.0},
}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "n_positions": 1024,
    "vocab_size": 50257,
}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "topk_group": 4,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "tie_word_embeddings": False,
}


def written(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("config", "billions"),
    [(LLAMA, 8.03), (GPT2, 0.124), (MIXTRAL, 46.7)],
    ids=["llama-3-8b", "gpt-2", "mixtral-8x7b"],
)
def test_parameters_are_those_of_the_real_models(
    tmp_path: Path, config: dict[str, Any], billions: float
) -> None:
    """As their model cards give them; positions and norms are not counted."""
    model = read_model(written(tmp_path, config))
    assert parameters(model) / 1e9 == pytest.approx(billions, rel=0.01)


def test_a_mixture_uses_two_of_its_experts(tmp_path: Path) -> None:
    model = read_model(written(tmp_path, MIXTRAL))
    assert active_parameters(model) / 1e9 == pytest.approx(12.9, rel=0.02)


def test_latent_attention_is_that_of_the_paper(tmp_path: Path) -> None:
    model = read_model(written(tmp_path, DEEPSEEK))
    ours = MODELS["deepseek-v3"].to_mapping()
    assert {**model.to_mapping(), "source": ""} == {**ours, "source": ""}


def test_what_families_leave_open(tmp_path: Path) -> None:
    gpt = read_model(written(tmp_path, GPT2))
    assert (gpt.ffn, gpt.is_gated, gpt.is_tied, gpt.sequence) == (4 * 768, False, True, 1024)
    llama = read_model(written(tmp_path, LLAMA))
    assert (llama.is_gated, llama.is_tied, llama.sequence) == (True, False, 4096)
    bert = read_model(written(tmp_path, {**LLAMA, "model_type": "bert", "dtype": "float32"}))
    assert (bert.is_causal, bert.is_gated, bert.value_bytes) == (False, False, 4)


def test_what_is_missing_or_wrong_is_named(tmp_path: Path) -> None:
    short = {key: value for key, value in LLAMA.items() if key != "hidden_size"}
    with pytest.raises(NotationError, match="without hidden_size; write out"):
        read_model(written(tmp_path, short))
    with pytest.raises(NotationError, match="n_embd: 'wide' where a whole number"):
        read_model(written(tmp_path, {**GPT2, "n_embd": "wide"}))


def test_a_config_is_a_model_of_simulate_and_compare(tmp_path: Path) -> None:
    path = str(written(tmp_path, LLAMA))
    words = ("-d", "4", "-n", "8", "--model", path, "--device", "h100")
    found = weft_json("simulate", "1f1b", *words)
    assert found["makespan"] > 0
    (row,) = weft_json("compare", "1f1b", *words)["rows"]
    assert row["makespan"] == pytest.approx(found["makespan"])


def test_a_config_is_a_model_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the name of its folder."""
    folder = tmp_path / "my-llama"
    folder.mkdir()

    def busy(*_: object, **__: object) -> None:
        raise OSError(98, "in use")

    monkeypatch.setattr("weft.web.server.Server", busy)
    result = weft("serve", "--no-open", "--model", str(written(folder, LLAMA)))
    assert "cannot be listened on" in result.stderr
    try:
        asked = {"model": "my-llama", "device": "h100", "schedule": "1f1b", "devices": 4}
        answer = timelines({"requests": [{**asked, "microbatches": 8}]})
        assert "my-llama" in str(catalogue()["models"])
        assert '"refused"' not in json.dumps(answer, default=str)
    finally:
        del MODELS["my-llama"]
