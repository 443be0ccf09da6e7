"""Saved datasets: folders as `save_to_disk` of Hugging Face's `datasets` writes them.

    folder/state.json     names the files of the rows, in their order
    folder/data-*.arrow   rows, as streams of Arrow
    folder/train/...      where several splits were saved together: the one to train on

Knows the files alone, and reads them with `pyarrow`; the library that wrote them is not needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import InputError
from weft.train.tokens import Tokens, vocabulary_of

COLUMNS = ("input_ids", "text")  # that are looked for
STATE, SPLITS, TRAINED = "state.json", "dataset_dict.json", "train"
MOST_STATE = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class SavedTokens:
    """A column of lists of numbers, one list after the other."""

    path: Path
    column: str
    vocabulary: int

    @property
    def name(self) -> str:
        """The column and where it is."""
        return f"{self.column} of {self.path}"

    def tokens(self) -> Tokens:
        """The numbers of all lists, in order."""
        return _joined(_column(self.path, self.column), self.name)


@dataclass(frozen=True, slots=True)
class SavedText:
    """A column of texts, each with a line break after it."""

    path: Path
    column: str

    @property
    def name(self) -> str:
        return f"{self.column} of {self.path}"

    def read(self, most: int) -> str:
        """All of it; InputError where that is more than this many characters."""
        texts, length = list[str](), 0
        for chunk in _column(self.path, self.column).chunks:
            for text in chunk.to_pylist():
                if text is not None:
                    texts.append(f"{text}\n")
                    length += len(texts[-1])
            if length > most:
                raise InputError(
                    f"{self.name} is longer than the {most >> 20} Mi characters"
                    f" that Weft reads of a text; save tokens in place of it, as lists of numbers"
                )
        return "".join(texts)


def is_saved(path: Path) -> bool:
    """Whether it is a folder with what such folders have."""
    return (path / STATE).is_file() or (path / SPLITS).is_file()


def saved_dataset(
    path: Path, *, column: str | None = None, vocabulary: int | None = None
) -> SavedTokens | SavedText:
    """What a folder holds in a column, or in the first of those that are usual."""
    folder = _trained(path)
    chosen = column or _usual(folder)
    kind = str(_column(folder, chosen).type)
    if kind in ("string", "large_string", "string_view"):
        if vocabulary is not None:
            raise InputError(
                f"{chosen} of {folder} is text, whose vocabulary is its characters; leave out"
                f" --vocabulary"
            )
        return SavedText(folder, chosen)
    if "list<" in kind and "int" in kind.partition("list<")[2]:
        tokens = SavedTokens(folder, chosen, 0)
        found = vocabulary_of(tokens.tokens(), tokens.name, vocabulary)
        return SavedTokens(folder, chosen, found)
    raise InputError(
        f"{chosen} of {folder} holds {kind}; tokens are lists of integers, and a text is strings."
        f" Name another column with --column"
    )


def _trained(path: Path) -> Path:
    """The folder itself, or its split to train on."""
    if not (path / SPLITS).is_file():
        return path
    if (path / TRAINED / STATE).is_file():
        return path / TRAINED
    splits = sorted(found.parent.name for found in path.glob(f"*/{STATE}"))
    raise InputError(f"{path} has no split {TRAINED!r}; give one of its folders: {splits}")


def _usual(folder: Path) -> str:
    names = _table(folder).column_names
    for name in COLUMNS:
        if name in names:
            return name
    raise InputError(
        f"{folder} has neither {' nor '.join(COLUMNS)}; name one of its columns with --column:"
        f" {', '.join(names)}"
    )


def _column(folder: Path, name: str) -> Any:
    table = _table(folder)
    if name not in table.column_names:
        raise InputError(f"{folder} has no column {name!r}; it has {', '.join(table.column_names)}")
    return table.column(name)


def _table(folder: Path) -> Any:
    """The rows of a folder, none of them read yet."""
    files, arrow = [*_files(folder)], _pyarrow(folder)
    try:
        streams = [arrow.ipc.open_stream(arrow.memory_map(str(file))) for file in files]
        return arrow.concat_tables([stream.read_all() for stream in streams])
    except (OSError, arrow.ArrowException) as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{folder} cannot be read: {reason}; is it cut off, or damaged?") from None


def _pyarrow(folder: Path) -> Any:
    try:
        import_module("pyarrow.ipc")
        return import_module("pyarrow")
    except ImportError:
        raise InputError(
            f"{folder} is a saved dataset, which is read with pyarrow: pip install 'weft[datasets]'"
        ) from None


def _files(folder: Path) -> Iterator[Path]:
    """The files of the rows, which are all in the folder itself."""
    for entry in _state(folder):
        name = entry.get("filename") if isinstance(entry, dict) else None
        if not isinstance(name, str) or Path(name).name != name:
            raise InputError(f"{folder / STATE}: {name!r} names no file of its folder")
        yield folder / name


def _state(folder: Path) -> list[Any]:
    path = folder / STATE
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(MOST_STATE))["_data_files"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{path} cannot be read; is it damaged?") from None
    if not isinstance(found, list) or not found:
        raise InputError(f"{path} names no files of rows; was the dataset empty?")
    return found


def _joined(column: Any, name: str) -> Tokens:
    """All numbers of lists, one after the other; only one chunk stays where it is."""
    parts = []
    for chunk in column.chunks:
        flat = chunk.flatten()
        if flat.null_count:
            raise InputError(f"{name}: a list has nothing in the place of a token")
        parts.append(flat.to_numpy(zero_copy_only=False))
    found: Tokens = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return found
