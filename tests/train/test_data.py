"""Texts and tokens as batches: decided by seed and step alone, and what is refused."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import InputError
from weft.train import Data, Text, TokenFile, data_of, own_text, tokens
from weft.train import data as module
from weft.train.data import Batches


def raw(path: Path, tokens: object, form: str = "<u2") -> Path:
    np.array(tokens, form).tofile(path)
    return path


def saved(path: Path, tokens: object, form: str = "i8") -> Path:
    np.save(path, np.array(tokens, form))
    return path


def mapped(data: Data) -> list[int]:
    tokens = data.tokens()
    assert isinstance(tokens, np.memmap)
    found: list[int] = tokens.tolist()
    return found


# batches


def test_weft_ships_a_text() -> None:
    assert 20_000 < len(own_text().text) < 100_000
    assert own_text().text.isascii()


def test_targets_are_what_follows() -> None:
    text = Text("the looms of the mill")
    tokens, targets = Batches(text, context=5).batch(8, seed=1, step=2)
    assert tokens.shape == targets.shape == (8, 5)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    written = "".join(text.signs[sign] for sign in [*tokens[0], targets[0, -1]])
    assert written in text.text


def test_seed_and_step_decide_the_batch() -> None:
    batches = Batches(own_text(), context=16)
    first, again = (batches.batch(4, seed=1, step=2)[0] for _ in range(2))
    assert torch.equal(first, again)
    for seed, step in ((1, 3), (2, 2)):
        assert not torch.equal(first, batches.batch(4, seed=seed, step=step)[0])


def starts(batches: Batches, seed: int, step: int) -> list[int]:
    """The first tokens of a batch of three sequences."""
    return batches.batch(3, seed=seed, step=step)[0][:, 0].tolist()


def test_shuffled_every_sequence_comes_once_in_an_epoch_in_an_order_of_its_own(
    tmp_path: Path,
) -> None:
    """Eight sequences of 5 tokens, whose batches of 3 do not end with an epoch."""
    data = data_of(raw(tmp_path / "one.bin", range(43)))
    batches = Batches(data, context=5, is_shuffled=True)
    found = [start for step in range(8) for start in starts(batches, 1, step)]
    epochs = [found[first : first + 8] for first in (0, 8, 16)]
    assert [sorted(epoch) for epoch in epochs] == [[*range(0, 40, 5)]] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3
    again = Batches(data, context=5, is_shuffled=True)
    assert starts(again, 1, 5) == found[15:18]
    assert starts(again, 2, 5) != found[15:18]


@pytest.mark.parametrize("name", ["one.bin", "one.npy"])
def test_tokens_are_drawn_as_a_text_is(name: str, tmp_path: Path) -> None:
    text, write = own_text(), raw if name.endswith(".bin") else saved
    tokens = data_of(write(tmp_path / name, text.tokens()))
    drawn = [Batches(data, context=16).batch(4, seed=1, step=2) for data in (text, tokens)]
    assert torch.equal(drawn[0][0], drawn[1][0])
    assert torch.equal(drawn[0][1], drawn[1][1])


# files of tokens


def test_raw_tokens_are_little_endian(tmp_path: Path) -> None:
    (tmp_path / "one.bin").write_bytes(bytes([1, 0, 0, 1, 7, 0, 0, 0]))
    assert mapped(data_of(tmp_path / "one.bin")) == [1, 256, 7, 0]
    assert mapped(data_of(tmp_path / "one.bin", token_type="uint32", vocabulary=9)) == [
        1 + (1 << 24),
        7,
    ]


@pytest.mark.parametrize("form", ["u1", "<i4", ">i8", "u8"])
def test_arrays_know_their_type(form: str, tmp_path: Path) -> None:
    assert mapped(data_of(saved(tmp_path / "one.npy", [3, 1, 2], form))) == [3, 1, 2]


def test_the_vocabulary_ends_with_the_largest_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "CHUNK", 2)
    assert data_of(raw(tmp_path / "one.bin", [4, 1, 9, 2, 3])).vocabulary == 10


def test_a_vocabulary_that_is_given_is_taken(tmp_path: Path) -> None:
    path = raw(tmp_path / "one.bin", [4, 1, 9])
    assert data_of(path, vocabulary=50257) == TokenFile(path, 50257, "uint16")


# what is refused


def test_a_short_text_is_refused() -> None:
    Batches(Text("weaving"), context=5)
    with pytest.raises(InputError, match=r"the text has 7 tokens, .* no two sequences of 6"):
        Batches(Text("weaving"), context=6)


def test_a_token_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    data = data_of(raw(tmp_path / "one.bin", [1, 2, 3, 7, 1, 2]), vocabulary=7)
    with pytest.raises(InputError, match="token 7 at position 3 is outside the vocabulary of 7"):
        Batches(data, context=4).batch(8, seed=0, step=0)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("one.bin", b"", "0 bytes"),
        ("one.bin", b"abc", "3 bytes, which are not a whole number of uint16"),
        ("one.npy", b"", "cannot be read"),
        ("one.npy", b"PK\x03\x04 and so on", "magic string"),
        ("one.txt", b"\xff\xfe\xfa", "not text in UTF-8; a file of tokens ends in .bin or .npy"),
        ("one", b"\xff\xfe\xfa", "not text in UTF-8"),
    ],
)
def test_what_does_not_read_is_refused(
    name: str, content: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=said):
        data_of(tmp_path / name)


@pytest.mark.parametrize(
    ("tokens", "form", "said"),
    [
        ([1.0, 2.0], "f4", "float32 in 1 dimensions; tokens are integers in one"),
        ([[1, 2]], "i4", "int32 in 2 dimensions"),
        ([1, -2], "i4", "token -2 is negative"),
        ([1, 1 << 31], "u4", "vocabulary of 2,147,483,649 is more than the 16,777,216"),
        ([None], "O", "Python objects"),
    ],
)
def test_arrays_of_no_tokens_are_refused(
    tokens: object, form: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        data_of(saved(tmp_path / "one.npy", tokens, form))


def test_an_array_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "one.npy", range(100))
    os.truncate(path, path.stat().st_size - 8)
    with pytest.raises(InputError, match="cannot be read"):
        data_of(path)


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("one.txt", {"token_type": "uint16"}, "leave out --token-type"),
        ("one.npy", {"token_type": "uint16"}, "leave out --token-type"),
        ("one.txt", {"vocabulary": 9}, "leave out --vocabulary"),
        ("one.bin", {"token_type": "int8"}, "--token-type is uint16 or uint32"),
    ],
)
def test_what_fits_no_such_file_is_refused(
    name: str, more: dict[str, str], said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(b"weaving.")
    with pytest.raises(InputError, match=said):
        data_of(tmp_path / name, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["one.bin", "one.npy", "one.txt"])
def test_what_is_no_file_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=name):
        data_of(tmp_path / name)
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=name):
        data_of(tmp_path / name)


# damage


GOOD = "{'descr': '<u2', 'fortran_order': False, 'shape': (50,), }"


def headed(header: str, *, version: int = 1) -> bytes:
    """Fifty tokens of two bytes after such a header."""
    size = len(header).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + header.encode("latin-1") + bytes(100)


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize(
    "header",
    [
        *("", "{", "(" * 3000, "-" * 3000, "[]", "'x'", "\xff\xfe", "lambda: 0", "{" * 200),
        GOOD.replace("50", "9" * 23),
        GOOD.replace("50", "4611686018427387904"),
        GOOD.replace("50", "-5"),
        GOOD.replace("50", "True"),
        GOOD.replace("(50,)", "50"),
        GOOD.replace("50", "49"),
        GOOD.replace("50", "51"),
        GOOD.replace("<u2", ",,,,"),
        GOOD.replace("<u2", "0000002"),
        GOOD.replace("<u2", "|O"),
        GOOD.replace("<u2", "<u8"),
        GOOD.replace("'<u2'", "[('a', '<u2')]"),
        GOOD.replace("}", ""),
        GOOD.replace("False", "Fals["),
        GOOD[:20],
    ],
)
def test_a_damaged_header_is_refused(tmp_path: Path, header: str, version: int) -> None:
    path = tmp_path / "one.npy"
    path.write_bytes(headed(header, version=version))
    with pytest.raises(InputError, match=re.escape(str(path))) as refusal:
        data_of(path)
    assert "\n" not in str(refusal.value)


def test_a_whole_header_is_read(tmp_path: Path) -> None:
    path = tmp_path / "one.npy"
    path.write_bytes(headed(GOOD))
    assert mapped(data_of(path)) == [0] * 50


@settings(max_examples=300, deadline=None)
@given(where=st.integers(0, 127), removed=st.integers(0, 3), added=st.binary(max_size=3))
def test_an_array_damaged_anywhere_is_read_or_refused(
    arrays: Path, where: int, removed: int, added: bytes
) -> None:
    path = arrays / "one.npy"
    content = saved(path, range(100), "<u2").read_bytes()
    path.write_bytes(content[:where] + added + content[where + removed :])
    with suppress(InputError):
        assert data_of(path).tokens().size in (100, 200)  # as u2, or as u1


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arrays")


def test_a_text_without_end_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="/dev/zero is not a file"):
        data_of(Path("/dev/zero"))
    monkeypatch.setattr(module, "MOST_TEXT", 1 << 20)
    path = tmp_path / "long.txt"
    path.write_text("é" * ((1 << 20) + 1))
    with pytest.raises(InputError, match="longer than the 1 Mi characters"):
        data_of(path)


def test_characters_are_numbered_in_the_order_of_their_code_points() -> None:
    text = Text("zaé\U0001f600a\n")
    assert text.tokens().tolist() == [text.signs.index(sign) for sign in text.text]
