"""The small GPT: what it computes, and that it can be cut anywhere."""

from __future__ import annotations

import pytest
import torch

from weft.errors import InputError
from weft.models import gpt
from weft.runtime import split


def small(dropout: float = 0.0) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return gpt(11, layers=2, hidden=8, heads=2, context=6, dropout=dropout)


def test_a_score_for_every_sign_at_every_position() -> None:
    assert small()(torch.zeros(3, 5, dtype=torch.long)).shape == (3, 5, 11)


def test_no_position_sees_what_follows() -> None:
    model, tokens = small(), torch.arange(6).unsqueeze(0)
    changed = tokens.clone()
    changed[0, 4] = 10
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_every_cut_computes_the_same(stages: int) -> None:
    model, value = small(), torch.arange(6).unsqueeze(0)
    whole = model(value)
    for stage in split(model, stages=stages):
        value = stage(value)
    assert torch.equal(value, whole)


def test_dropout_drops() -> None:
    model, tokens = small(dropout=0.5), torch.arange(6).unsqueeze(0)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_heads_divide_the_width() -> None:
    with pytest.raises(InputError, match="3 heads do not divide a hidden size of 8"):
        gpt(11, layers=2, hidden=8, heads=3, context=6)
