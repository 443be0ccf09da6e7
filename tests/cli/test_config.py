"""--config: files of options, written and read, after the command line."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.running import refused, weft
from weft.cli.config import to_toml
from weft.errors import InputError

KEYS = st.from_regex(r"[a-z][a-z_]{0,9}", fullmatch=True)
VALUES = st.text() | st.integers() | st.floats(allow_nan=False)
SMALL = 'layers = 2\nhidden = 8\nheads = 1\ncontext = 8\nsteps = 2\ndevices = 2\nschedule = "zbv"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.toml"


def losses(*words: str) -> list[float]:
    result = weft("train", *words, "--reference", "--json")
    assert result.exit_code == 0, result.stderr
    found: list[float] = json.loads(result.stdout)["losses"]
    return found


@given(st.dictionaries(KEYS, VALUES))
def test_what_is_written_reads_back(settings: dict[str, str | int | float]) -> None:
    written = {key.replace("_", "-"): value for key, value in settings.items()}
    assert tomllib.loads(to_toml(settings)) == written


def test_what_utf8_cannot_hold_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be written in UTF-8"):
        to_toml({"data": "my\udcff.txt"})


def test_a_file_stands_for_its_options(file: Path) -> None:
    file.write_text(f"{SMALL}microbatch-size = 2\nlearning_rate = 1e-2\ndropout = 0\n")
    words = "--layers 2 --hidden 8 --heads 1 --context 8 --steps 2 -d 2 --schedule zbv"
    more = "--microbatch-size 2 --learning-rate 0.01 --dropout 0"
    assert losses("--config", str(file)) == losses(*words.split(), *more.split())


def test_the_command_line_wins(file: Path) -> None:
    file.write_text(SMALL)
    assert len(losses("--config", str(file), "--steps", "3")) == 3
    assert len(losses("--steps", "3", "--config", str(file))) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stpes = 3", "no setting is named 'stpes'; did you mean 'steps'?"),
        ("learning_rat = 3", "named 'learning_rat'; did you mean 'learning-rate'?"),
        ("out = 'here'", "no setting is named 'out'"),
        ("[job]\nsteps = 3", "no setting is named 'job'"),
        ("steps = '3'", "steps: '3' is not a whole number"),
        ("steps = 2.5", "steps: 2.5 is not a whole number"),
        ("steps = true", "steps: True is not a whole number"),
        ("steps = 0", "steps: 0 is not a whole number from 1 to"),
        ("dropout = 'much'", "dropout: 'much' is not a number from 0 to 1, without 1"),
        ("dropout = 1", "dropout: 1 is not a number from 0 to 1, without 1"),
        ("dropout = nan", "dropout: nan is not a number from 0 to 1"),
        (f"dropout = 1{'0' * 400}", "dropout: "),
        ("schedule = 1", "schedule: 1 is not a short text"),
        ("data = ['my.txt']", "data: ['my.txt'] is not the name of a file"),
        ("[schedule]\nname = 1", "schedule: {'name': 1} is not a short text"),
        ("token-type = 16", "token-type: 16 is not a short text"),
        ("token-type = 'uint8'\ndata = 'no.bin'", "no.bin"),
        ("heads = 1\nlearning-rate = 0.1\nlearning_rate = 0.1", "stands there twice"),
        ("steps 3", "run.toml, line 1: 'steps 3' is not TOML: a line has a name and its value"),
        ("heads = 1\nsteps = many", "line 2: 'steps = many' is not TOML: a line has a name"),
        ("steps = 3\nschedule = 'zb", 'line 2: "schedule = \'zb" is not TOML'),
        ("steps = 3\nsteps = 3", "line 2: 'steps = 3' is not TOML: the name is there already"),
        ("steps = " + "[" * 20_000, "is not TOML: "),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_key(text: str, said: str, file: Path) -> None:
    file.write_text(text)
    refused(weft("train", "--config", str(file), "--reference"), said)


def test_messages_name_the_file(file: Path) -> None:
    file.write_text("stpes = 3")
    refused(weft("train", "--config", str(file)), f"weft: {file}: no setting")


@pytest.mark.parametrize("name", ["nowhere.toml", "."])
def test_what_cannot_be_read_is_refused(name: str) -> None:
    refused(weft("train", "--config", name), f"{name} cannot be read: ")


def test_what_is_no_text_is_refused(file: Path) -> None:
    file.write_bytes(b"\xff\xfe")
    refused(weft("train", "--config", str(file)), "is not TOML, which is text in UTF-8")


def test_settings_without_end_are_refused() -> None:
    refused(weft("train", "--config", "/dev/zero"), "/dev/zero", "is longer than")
