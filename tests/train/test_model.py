"""Models of training runs: presets and configs of Hugging Face."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import weft, weft_json
from weft.errors import InputError
from weft.schedules import REGISTRY, Shape
from weft.train import Settings, checked, own_text, trained

LLAMA = {
    "model_type": "llama",
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "vocab_size": 128,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
}
MIXTRAL = LLAMA | {
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "output_router_logits": True,
    "tie_word_embeddings": False,
}


def written(folder: Path, config: dict[str, Any]) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


def settings(
    folder: Path, config: dict[str, Any], schedule: str = "1f1b", **asked: Any
) -> Settings:
    entry = REGISTRY[schedule]
    count = entry.stages_per_device[0]
    program = entry.program(Shape(devices=2, microbatches=2, stages_per_device=count, updates=8))
    sizes: dict[str, Any] = {"model": written(folder, config), "steps": 3, "context": 8}
    sizes |= {"layers": 4, "hidden": 16, "heads": 2, "microbatch_size": 2}
    return Settings(program=program, data=own_text(), **(sizes | asked))


@pytest.mark.parametrize(
    ("config", "schedule"),
    [(LLAMA, "zbv"), (LLAMA, "wpipe"), (MIXTRAL, "1f1b")],
    ids=["llama-zbv", "llama-wpipe", "mixtral-1f1b"],
)
def test_a_config_trains_as_the_reference_does(
    tmp_path: Path, config: dict[str, Any], schedule: str
) -> None:
    asked = settings(tmp_path, config, schedule)
    assert trained(asked).losses == checked(asked)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has a vocabulary of 8, and"):
        checked(settings(tmp_path, {**LLAMA, "vocab_size": 8}))
    with pytest.raises(InputError, match="reads 4 tokens at most; use --context 4"):
        checked(settings(tmp_path, {**LLAMA, "max_position_embeddings": 4}))
    with pytest.raises(InputError, match="has rates of its own"):
        checked(settings(tmp_path, LLAMA, dropout=0.1))


def test_a_file_of_wefts_own_gives_a_gpt_of_its_sizes(tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    sizes = {"layers": 2, "hidden": 8, "heads": 2, "ffn": 32, "vocabulary": 99, "sequence": 16}
    path.write_text(json.dumps({"format": "weft.model", "version": 1, **sizes}))
    words = ("train", "-d", "1", "-n", "2", "--steps", "1", "--context", "8", "--reference")
    assert 3 < weft_json(*words, "--model", str(path))["losses"][0] < 5


def test_a_config_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="describes no model that predicts the next token"):
        checked(settings(tmp_path, {**LLAMA, "model_type": "loom"}))


def test_the_command_takes_a_config_and_a_preset(tmp_path: Path) -> None:
    words = ("train", "-d", "1", "-n", "2", "--steps", "1", "--context", "8", "--reference")
    found = weft_json(*words, "--model", written(tmp_path, LLAMA))
    assert 4 < found["losses"][0] < 6
    result = weft(*words, "--model", "gpt-3")
    assert "weights; a job has at most" in result.stderr
    result = weft(*words, "--model", "lama")
    assert "lama" in result.stderr
    assert result.exit_code == 2


def test_a_named_model_has_its_own_layers(tmp_path: Path) -> None:
    asked = ["--schedule", "kimi-k2", "-d", "2", "-n", "4", "-k", "9", "--out", str(tmp_path)]
    said = weft("train", "--model", "moe-small", *asked).output
    assert "8 layers of moe-small and head make 10 stages at most, and kimi-k2 has 18" in said
    assert "use fewer, by -d and -k" in said
    assert "use --layers 16" in weft("train", *asked).output
