"""Texts as batches: decided by seed and step alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from weft.errors import InputError
from weft.train import own_text, text_of
from weft.train.data import Characters


def test_weft_ships_a_text() -> None:
    assert 20_000 < len(own_text()) < 100_000
    assert own_text().isascii()


def test_targets_are_what_follows() -> None:
    characters = Characters("the looms of the mill", context=5)
    tokens, targets = characters.batch(8, seed=1, step=2)
    assert tokens.shape == targets.shape == (8, 5)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    written = "".join(characters.vocabulary[sign] for sign in [*tokens[0], targets[0, -1]])
    assert written in "the looms of the mill"


def test_seed_and_step_decide_the_batch() -> None:
    characters = Characters(own_text(), context=16)
    first, again = (characters.batch(4, seed=1, step=2)[0] for _ in range(2))
    assert torch.equal(first, again)
    for seed, step in ((1, 3), (2, 2)):
        assert not torch.equal(first, characters.batch(4, seed=seed, step=step)[0])


def test_a_short_text_is_refused() -> None:
    Characters("weaving", context=5)
    with pytest.raises(InputError, match="no two sequences of 6"):
        Characters("weaving", context=6)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(InputError, match="no text in UTF-8"):
        text_of(tmp_path / "noise")
