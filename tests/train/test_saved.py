"""Saved datasets: what Hugging Face's `datasets` wrote is read without it, or refused."""

from __future__ import annotations

import json
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from weft.errors import InputError
from weft.train import SavedTokens, Text, data_of

# Three rows in two files, written by `datasets` 5.2.0: save_to_disk(..., num_shards=2).
SAVED = Path(__file__).parent / "saved"
TEXTS = ["the looms of the mill", "run by day", "and by night"]


def test_a_folder_says_what_it_is_read_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"read with pyarrow: pip install 'weft\[datasets\]'"):
        data_of(SAVED)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is a folder without state.json, so it is not a dataset that `save_to_disk` wrote"),
        ("{", "is it damaged"),
        ("[]", "is it damaged"),
        ('{"_data_files": []}', "names no files of rows"),
        ('{"_data_files": [{"filename": "../other.arrow"}]}', "names no file of its folder"),
        ('{"_data_files": ["data.arrow"]}', "names no file of its folder"),
    ],
)
def test_a_folder_without_a_good_state_is_refused(
    content: str | None, said: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "state.json").write_text(content)
    with pytest.raises(InputError, match=said):
        data_of(tmp_path)


def test_lists_of_numbers_are_tokens() -> None:
    data = data_of(SAVED)
    assert data == SavedTokens(SAVED, "input_ids", 10)
    assert data.tokens().tolist() == [*range(1, 10)]
    assert data_of(SAVED, vocabulary=64).vocabulary == 64


def test_strings_are_a_text_with_a_line_for_each() -> None:
    data = data_of(SAVED, column="text")
    assert isinstance(data, Text)
    assert data.text.splitlines() == TEXTS


def test_of_several_splits_the_one_to_train_on_is_read(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["test", "train"]}))
    shutil.copytree(SAVED, tmp_path / "test")
    with pytest.raises(InputError, match=r"no split 'train'; give one of its folders: \['test'\]"):
        data_of(tmp_path)
    shutil.copytree(SAVED, tmp_path / "train")
    assert data_of(tmp_path) == SavedTokens(tmp_path / "train", "input_ids", 10)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"column": "words"}, "has no column 'words'; it has text, input_ids"),
        ({"column": "text", "vocabulary": 9}, "is text, whose vocabulary is its characters"),
        ({"token_type": "uint16"}, "leave out --token-type"),
    ],
)
def test_what_does_not_fit_is_refused(more: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        data_of(SAVED, **more)  # type: ignore[arg-type]


def test_other_columns_and_damage_are_refused(tmp_path: Path) -> None:
    arrow: Any = import_module("pyarrow")
    table = arrow.table({"scores": [[0.5]], "input_ids": [[1, None]], "word": [1]})
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "one.arrow"}]}')
    with arrow.ipc.new_stream(str(tmp_path / "one.arrow"), table.schema) as stream:
        stream.write_table(table)
    for column, said in (
        ("scores", "tokens are lists of integers"),
        ("word", "tokens are lists of integers"),
        ("input_ids", "a list has nothing in the place of a token"),
    ):
        with pytest.raises(InputError, match=said):
            data_of(tmp_path, column=column)
    whole = (tmp_path / "one.arrow").read_bytes()
    (tmp_path / "one.arrow").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="is it cut off, or damaged"):
        data_of(tmp_path)


def test_a_column_is_for_folders(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("weaving")
    with pytest.raises(InputError, match="is not a saved dataset, which alone has a --column"):
        data_of(tmp_path / "one.txt", column="text")
