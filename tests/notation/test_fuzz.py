"""Broken bytes of good files are read or refused, and what is read can be reasoned about."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.notation.examples import one_f_one_b, two_pipes
from weft.cost import DEVICES, MODELS
from weft.errors import NotationError
from weft.notation import (
    from_json,
    read_device,
    read_graph,
    read_model,
    read_program,
    read_timeline,
    to_json,
    to_text,
    to_torch_csv,
)
from weft.simulate import simulate

PLAIN = one_f_one_b(devices=2, microbatches=2)
TEXTS = [to_text(PLAIN), to_text(two_pipes()), to_json(two_pipes()), to_torch_csv(PLAIN)]
SEEDS = [text.encode() for text in TEXTS]
TIMELINE = to_json(simulate(PLAIN)).encode()
DESCRIPTIONS = [to_json(MODELS["deepseek-v3"]).encode(), to_json(DEVICES["h200"]).encode()]
READERS: list[Callable[[Path], object]] = [
    *(read_program, read_timeline, read_graph, read_model, read_device)
]
BITS = [b"9", b"-", b"1e999", b"NaN", b"\x00", b"\xff", b"[", b"{", b"|", b"\n", b",", b'"', b"@"]

edits = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 3), st.sampled_from(BITS) | st.binary(max_size=3)),
    min_size=1,
    max_size=4,
)


def edited(content: bytes, changes: list[tuple[float, int, bytes]]) -> bytes:
    for where, removed, added in changes:
        position = int(where * len(content))
        content = content[:position] + added + content[position + removed :]
    return content


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "file"


@settings(max_examples=300, deadline=None)
@given(seed=st.sampled_from(SEEDS), changes=edits)
def test_a_broken_program_is_read_or_refused(
    path: Path, seed: bytes, changes: list[tuple[float, int, bytes]]
) -> None:
    path.write_bytes(edited(seed, changes))
    try:
        program = read_program(path)
    except NotationError:
        return
    assert program.dependencies is not None
    assert len(program.digest) == 64


@settings(max_examples=200, deadline=None)
@given(changes=edits)
def test_a_broken_timeline_is_read_or_refused(
    path: Path, changes: list[tuple[float, int, bytes]]
) -> None:
    path.write_bytes(edited(TIMELINE, changes))
    with suppress(NotationError):
        assert read_timeline(path).makespan >= 0


@settings(max_examples=200, deadline=None)
@given(seed=st.sampled_from(DESCRIPTIONS), changes=edits)
def test_a_broken_model_or_device_is_read_or_refused(
    path: Path, seed: bytes, changes: list[tuple[float, int, bytes]]
) -> None:
    path.write_bytes(edited(seed, changes))
    for read in (read_model, read_device):
        with suppress(NotationError):
            described = read(path)
            assert from_json(to_json(described)) == described


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=200) | st.text().map(str.encode))
def test_anything_at_all_is_read_or_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for read in READERS:
        with suppress(NotationError):
            read(path)
