"""Data: tokens in a row, and batches of them decided by seed and step alone.

Text         the characters of a text, numbered in the order of their code points
TokenFile    numbers in a file, read where they lie: it may be larger than memory
SavedTokens  numbers in a saved dataset, of which a text is a Text
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol
from warnings import catch_warnings

import numpy as np
import torch
from torch import Tensor

from weft.errors import InputError
from weft.train.saved import STATE, SavedTokens, is_saved, saved_dataset
from weft.train.tokens import Tokens, vocabulary_of

TOKEN_TYPES = {"uint16": "<u2", "uint32": "<u4"}
USUAL_TYPE = "uint16"
MOST_REASON = 120  # characters of what numpy says
MOST_TEXT = 256 << 20  # bytes


class Data(Protocol):
    """What a run reads: tokens, each a number below the vocabulary."""

    @property
    def name(self) -> str:
        """What to call it in a message."""

    @property
    def vocabulary(self) -> int:
        """How many different tokens there may be."""

    def tokens(self) -> Tokens:
        """All of them, in order."""


@dataclass(frozen=True)
class Text:
    """A text, its characters numbered in the order of their code points."""

    text: str
    name: str = "the text"

    @cached_property
    def signs(self) -> str:
        """Every character that occurs, once."""
        return "".join(sorted(set(self.text)))

    @property
    def vocabulary(self) -> int:
        """How many different characters occur."""
        return len(self.signs)

    def tokens(self) -> Tokens:
        """The number of each character, in order."""
        return np.searchsorted(_codes(self.signs), _codes(self.text)).astype(np.int32)


@dataclass(frozen=True, slots=True)
class TokenFile:
    """Numbers in a file; a .npy knows its own type, that of a .bin is given."""

    path: Path
    vocabulary: int
    token_type: str | None = None

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    def tokens(self) -> Tokens:
        """The numbers, read where they lie."""
        return _mapped(self.path, self.token_type)


def own_text() -> Text:
    """The text that Weft ships."""
    text = files("weft.train").joinpath("data/pipelines.txt").read_text(encoding="utf-8")
    return Text(text, "Weft's own text")


def data_of(
    path: Path,
    *,
    token_type: str | None = None,
    vocabulary: int | None = None,
    column: str | None = None,
) -> Data:
    """A user's data: a saved dataset, tokens where the name ends in .bin or .npy, or a text."""
    ending = path.suffix.lower()
    if column is not None and not is_saved(path):
        raise InputError(f"{path} is not a saved dataset, which alone has a --column; leave it out")
    if ending == ".bin":
        return _token_file(path, token_type or USUAL_TYPE, vocabulary)
    if token_type is not None:
        raise InputError(
            f"{path} does not end in .bin, which alone has a --token-type; rename it or leave"
            " out --token-type"
        )
    if is_saved(path):
        saved = saved_dataset(path, column=column, vocabulary=vocabulary)
        return saved if isinstance(saved, SavedTokens) else Text(saved.read(MOST_TEXT), saved.name)
    if ending == ".npy":
        return _token_file(path, None, vocabulary)
    if vocabulary is not None:
        raise InputError(
            f"{path} ends in neither .bin nor .npy, so it is a text, whose vocabulary is its"
            " characters; rename it or leave out --vocabulary"
        )
    return _text_of(path)


class Batches:
    """Sequences from anywhere in the data; shuffled, each of them once in every epoch.

    Which ones a step has depends on the seed and on how many sequences were before it, and on
    nothing else.
    """

    def __init__(self, data: Data, *, context: int, is_shuffled: bool = False) -> None:
        self._data, self._context, self._tokens = data, context, data.tokens()
        self._is_shuffled, self._order = is_shuffled, lru_cache(maxsize=2)(self._drawn)
        if len(self._tokens) < context + 2:
            raise InputError(
                f"{data.name} has {len(self._tokens)} tokens, which make no two sequences of"
                f" {context}; give more with --data, or a shorter --context"
            )

    def batch(self, sequences: int, *, seed: int, step: int) -> tuple[Tensor, Tensor]:
        """Sequences, and for each position the token that follows."""
        if self._is_shuffled:
            starts = self._next(range(step * sequences, (step + 1) * sequences), seed)
        else:
            drawn = _generator(seed, f"{step}/batch")
            last = len(self._tokens) - self._context
            starts = torch.randint(0, last, (sequences, 1), generator=drawn, device="cpu")
        places = starts + torch.arange(self._context, device="cpu")
        return self._at(places), self._at(places + 1)

    def _next(self, turns: range, seed: int) -> Tensor:
        """Where the sequences of these turns start; a batch may end an epoch and begin another."""
        length = (len(self._tokens) - 1) // self._context  # of an epoch
        found = [self._order(seed, turn // length)[turn % length] for turn in turns]
        return torch.stack(found).view(-1, 1) * self._context

    def _drawn(self, seed: int, epoch: int) -> Tensor:
        """The sequences of an epoch in their order."""
        length = (len(self._tokens) - 1) // self._context
        return torch.randperm(length, generator=_generator(seed, f"{epoch}/epoch"), device="cpu")

    def _at(self, places: Tensor) -> Tensor:
        found = self._tokens[places.numpy()].astype(np.int64)
        is_wrong = (found < 0) | (found >= self._data.vocabulary)
        if is_wrong.any():
            raise InputError(
                f"{self._data.name}: token {found[is_wrong][0]} at position"
                f" {places.numpy()[is_wrong][0]} is outside the vocabulary of"
                f" {self._data.vocabulary}; give a larger --vocabulary, or leave it out"
            )
        return torch.from_numpy(found)


def _generator(seed: int, what: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{what}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))


# reading


def _codes(text: str) -> Tokens:
    """The code points of a text."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def _text_of(path: Path) -> Text:
    if path.is_dir():
        raise InputError(
            f"{path} is a folder without {STATE}, so it is not a dataset that `save_to_disk` wrote;"
            f" give such a folder, a text, or tokens in .bin or .npy"
        )
    if not path.is_file():
        raise InputError(f"{path} is not a file")
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MOST_TEXT + 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(
            f"{path} is not text in UTF-8; a file of tokens ends in .bin or .npy"
        ) from None
    if len(text) > MOST_TEXT:
        raise InputError(
            f"{path} is longer than the {MOST_TEXT >> 20} Mi characters that Weft reads of a text;"
            " give it as tokens in .bin or .npy, which are read where they lie"
        )
    return Text(text, str(path))


def _token_file(path: Path, token_type: str | None, vocabulary: int | None) -> TokenFile:
    found = vocabulary_of(_mapped(path, token_type), path, vocabulary)
    return TokenFile(path, found, token_type)


def _mapped(path: Path, token_type: str | None) -> Tokens:
    """The tokens of a file, none of them read yet."""
    if not path.is_file():
        raise InputError(f"{path} is not a file")
    try:
        return _array(path) if token_type is None else _raw(path, token_type)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def _raw(path: Path, token_type: str) -> Tokens:
    if token_type not in TOKEN_TYPES:
        known = " or ".join(TOKEN_TYPES)
        raise InputError(f"tokens of type {token_type!r} are not read; --token-type is {known}")
    form, size = np.dtype(TOKEN_TYPES[token_type]), path.stat().st_size
    if not size or size % form.itemsize:
        raise InputError(
            f"{path} has {size} bytes, which are not a whole number of {token_type}; is it cut off,"
            " or --token-type another?"
        )
    return np.memmap(path, form, mode="r")


def _array(path: Path) -> Tokens:
    found = _opened(path)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise InputError(
            f"{path} holds {found.dtype} in {found.ndim} dimensions; tokens are integers in one"
        )
    size = path.stat().st_size
    if found.offset + found.nbytes != size:
        raise InputError(
            f"{path} has {size:,} bytes where its header speaks of {found.offset + found.nbytes:,};"
            " is it cut off, or damaged?"
        )
    return found


def _opened(path: Path) -> np.memmap[Any, Any]:
    """What a .npy holds; a damaged header ends in whatever numpy's parsers raise."""
    try:
        with catch_warnings(action="ignore"):  # one message says all
            return np.lib.format.open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:MOST_REASON]
        raise InputError(
            f"{path} cannot be read: {reason or type(error).__name__}; is it cut off, or damaged?"
        ) from None
