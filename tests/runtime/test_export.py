"""Exported weights are those of the whole model, for torch and for Hugging Face."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from tests.runtime.models import batches, layers, tied
from tests.runtime.saving import LAYERS, pipeline_of, state_of, trained
from tests.runtime.test_initial_huggingface import IDS, MODELS
from weft.errors import InputError
from weft.runtime import Pipeline, split
from weft.runtime.losses import CrossEntropy
from weft.runtime.saves import export
from weft.schedules import one_f_one_b

PROGRAM = one_f_one_b(devices=2, microbatches=2)


def test_a_state_dict_is_loaded_by_the_unsplit_model(tmp_path: Path) -> None:
    pipeline = pipeline_of(PROGRAM)
    trained(pipeline, batches(5, 2))
    pipeline.save(tmp_path / "save")
    export(tmp_path / "save", tmp_path / "model.pt")
    model = layers(LAYERS, seed=9)
    model.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    wanted = state_of(pipeline)
    assert all(torch.equal(value, wanted[name]) for name, value in model.state_dict().items())
    with pytest.raises(InputError, match="is there already"):
        export(tmp_path / "save", tmp_path / "model.pt")


def test_a_state_dict_has_all_names_of_tied_weights(tmp_path: Path) -> None:
    pipeline_of(PROGRAM, stages=tied(2)).save(tmp_path / "save")
    export(tmp_path / "save", tmp_path / "model.pt")
    found = torch.load(tmp_path / "model.pt", weights_only=True)
    assert found.keys() == nn.Sequential(*tied(2)).state_dict().keys()


def _adam(named: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([weight for _, weight in named], lr=1e-2)


@pytest.mark.parametrize(("name", "largest"), [("llama", 8192), ("mixtral", 1 << 30)])
def test_hugging_face_loads_what_was_trained(name: str, largest: int, tmp_path: Path) -> None:
    """In several files with an index, with tied weights; or in one, with experts."""
    kind, config = MODELS[name]
    torch.manual_seed(0)
    model = kind(config)
    loss = CrossEntropy(shift=True)
    stages, program = split(model, stages=2, check=False), one_f_one_b(devices=2, microbatches=1)
    pipeline = Pipeline(stages, program, loss=loss, optimizer=_adam)
    pipeline.step(IDS, IDS)
    pipeline.save(tmp_path / "save")
    export(tmp_path / "save", tmp_path / "exported", largest=largest)
    config.save_pretrained(tmp_path / "exported")
    found: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    assert (len([*(tmp_path / "exported").glob("*.safetensors")]) > 1) == (largest == 8192)
    with torch.no_grad():
        assert torch.equal(pipeline.predict(IDS), found.eval()(IDS).logits)
