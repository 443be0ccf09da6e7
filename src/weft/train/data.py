"""Data: a text as batches of characters, decided by seed and step alone."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from weft.errors import InputError


def own_text() -> str:
    """The text that Weft ships."""
    return files("weft.train").joinpath("data/pipelines.txt").read_text(encoding="utf-8")


def text_of(path: Path) -> str:
    """A user's text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is no text in UTF-8") from None


class Characters:
    """The characters of a text as numbers, in the order of their code points."""

    def __init__(self, text: str, *, context: int) -> None:
        if len(text) < context + 2:
            raise InputError(
                f"a text of {len(text)} characters has no two sequences of {context};"
                " give a longer one with --data, or a shorter --context"
            )
        self._context = context
        self.vocabulary = "".join(sorted(set(text)))
        number = {sign: index for index, sign in enumerate(self.vocabulary)}
        self._tokens = torch.tensor([number[sign] for sign in text])

    def batch(self, sequences: int, *, seed: int, step: int) -> tuple[Tensor, Tensor]:
        """Sequences from anywhere in the text, and for each position the sign that follows."""
        drawn = torch.Generator().manual_seed(_key(seed, step))
        last = len(self._tokens) - self._context
        starts = torch.randint(0, last, (sequences, 1), generator=drawn)
        places = starts + torch.arange(self._context)
        return self._tokens[places], self._tokens[places + 1]


def _key(seed: int, step: int) -> int:
    digest = hashlib.sha256(f"{seed}/{step}/batch".encode()).digest()
    return int.from_bytes(digest[:7], "little")
