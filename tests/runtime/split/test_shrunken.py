"""Stages of Hugging Face models, compared when they are made."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import weft
from tests.runtime.split.families import FAMILIES, model_of
from weft.errors import InputError
from weft.runtime.split import hollow, shrunken


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_compared_on_a_small_one_of_its_class(family: str) -> None:
    assert weft.split(model_of(family), stages=3).checked == "by value, on a shrunken config"


def test_an_example_is_compared_on_the_model_itself() -> None:
    ids = torch.arange(12).reshape(2, 6)
    model = model_of("llama")
    assert weft.split(model, stages=2, example=ids).checked == "by value"
    assert weft.split(model, stages=2, check=False).checked == "not compared"


def test_a_model_on_meta_is_compared_too() -> None:
    with torch.device("meta"):
        model = model_of("llama", hidden_size=4096)
    assert weft.split(model, stages=4).checked == "by value, on a shrunken config"


@pytest.mark.parametrize("example", [None, torch.arange(12).reshape(2, 6)], ids=["small", "whole"])
def test_stages_that_compute_something_else_are_refused(
    example: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = hollow.Passage.leave
    monkeypatch.setattr(hollow.Passage, "leave", lambda self, hidden: right(self, 1.01 * hidden))
    monkeypatch.setattr(shrunken, "_FOUND", {})
    with pytest.raises(InputError, match="do not compute what the model does"):
        weft.split(model_of("qwen3"), stages=2, example=example)
