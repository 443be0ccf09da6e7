"""Damaged files: every command reads them, or says in one message what is wrong; no traceback."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.cli.running import refused, weft
from tests.notation.damage import damaged
from weft.cost import DEVICES, MODELS
from weft.errors import InputError, NotationError
from weft.ir.graph import Graph
from weft.ir.lanes import Period
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.lower import offload, recompute, updates, wires
from weft.notation import from_json, from_text, to_json, to_text, to_torch_csv
from weft.schedules import REGISTRY, Shape
from weft.simulate import simulate

LINES = (
    ("verify",),
    ("verify", "--json"),
    ("draw", "--width", "80"),
    ("draw", "--text"),
    ("draw", "-o", "picture.svg"),
    ("draw", "-o", "page.html"),
    ("simulate",),
    ("simulate", "--json"),
    ("simulate", "--recompute", "all"),
    ("simulate", "--offload", "all"),
    ("simulate", "--experts", "2"),
    ("simulate", "--steps", "2"),
    ("explain",),
    ("compare",),
    ("export",),
    ("export", "--format", "json"),
    ("export", "--format", "torch-csv"),
    ("export", "--lower"),
    ("export", "--format", "perfetto"),
)
TRAINED = ("--reference", "--steps", "1", "--layers", "4", "--hidden", "8", "--heads", "1",
           "--context", "4", "--microbatch-size", "1")  # fmt: skip


@cache
def files() -> dict[str, str]:
    """Whole files, by the names that they are damaged under."""
    plain = REGISTRY["1f1b"](devices=2, microbatches=2)
    wave = REGISTRY["zbv"](devices=2, microbatches=2)
    programs = [
        plain,
        wave,
        REGISTRY["chimera"](devices=2, microbatches=2),
        REGISTRY["pipedream"].program(Shape(devices=2, microbatches=2, updates=6)),
        REGISTRY["gpipe"](devices=6, microbatches=2, graph=Graph.inception()),
        updates(wires(plain)),
        recompute(wave),
        offload(simulate(plain)),
    ]
    found: dict[str, str] = {}
    for number, program in enumerate(programs):
        found |= {f"{number}.txt": to_text(program), f"{number}.json": to_json(program)}
    tables = (to_torch_csv(plain), to_torch_csv(updates(wires(wave))))
    return found | {f"{number}.csv": table for number, table in enumerate(tables)}


def is_refused(words: tuple[str, ...]) -> None:
    """Run a command; `weft` fails where it ends in a traceback."""
    result = weft(*words)
    assert result.exit_code in (0, 1, 2), words
    if result.exit_code:
        assert result.stderr.startswith("weft: ") or words[0] == "verify", words
        assert result.stderr or result.stdout, words


@pytest.mark.parametrize("seed", range(40))
def test_every_command_survives_a_damaged_program(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chance = random.Random(seed)
    for _ in range(6):
        name = chance.choice(list(files()))
        text = damaged(chance, files()[name])
        Path(name).write_text(text, encoding="utf-8", newline="")
        for command, *options in ((LINES[0]), *chance.sample(LINES, 4)):
            is_refused((command, name, *options))


@pytest.mark.parametrize("seed", range(8))
def test_training_survives_a_damaged_program(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    chance = random.Random(1000 + seed)
    for _ in range(3):
        name = chance.choice([name for name in files() if not name.startswith(("4", "7"))])
        Path(name).write_text(damaged(chance, files()[name]), encoding="utf-8", newline="")
        is_refused(("train", "--schedule", name, *TRAINED))


OTHERS = {
    "cost.json": ("simulate", "1f1b", "-d", "2", "-n", "2", "--cost"),
    "graph.json": ("simulate", "gpipe", "--graph"),
    "model.json": ("simulate", "1f1b", "--device", "h800", "--model"),
    "device.json": ("simulate", "1f1b", "--model", "gpt-6.2b", "--device"),
    "run.toml": ("train", "--reference", "--config"),
}


@cache
def others() -> dict[str, str]:
    """Files that are no programs."""
    timeline = simulate(REGISTRY["1f1b"](devices=2, microbatches=2))
    return {
        "cost.json": to_json(timeline.cost),
        "graph.json": '{"stages": 4, "edges": [[0, 1], [0, 2], [1, 3], [2, 3]],\n'
        '"devices": [0, 1, 1, 0], "name": "diamond"}',
        "model.json": to_json(MODELS["deepseek-v3"]),
        "device.json": to_json(DEVICES["h200"]),
        "run.toml": 'steps = 1\nlayers = 4\nhidden = 8\nheads = 1\ncontext = 4\nschedule = "1f1b"\n'
        "devices = 2\nmicrobatches = 2\nlearning-rate = 0.003\n",
    }


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("seed", range(6))
def test_every_other_file_may_be_damaged_too(
    name: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "run.toml":
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    chance = random.Random(seed)
    for _ in range(3 if name == "run.toml" else 10):
        Path(name).write_text(damaged(chance, others()[name]), encoding="utf-8", newline="")
        is_refused((*OTHERS[name], name))


def cuts(text: str) -> Iterator[str]:
    """A text, ended after each of its lines."""
    lines = text.splitlines(keepends=True)
    return ("".join(lines[:end]) for end in range(len(lines)))


@pytest.mark.parametrize("name", ["1.txt", "1.json", "1.csv"])
def test_a_file_that_ends_after_any_of_its_lines_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    for text in cuts(files()[name]):
        path.write_text(text)
        result = weft("simulate", str(path))
        assert result.exit_code in (1, 2)
        assert result.stderr.startswith("weft: ")


# a program without lanes

WITHOUT = {
    "cut.txt": "weft program 1\nname x\nmicrobatches 2\ngraph chain 2\nplace 0 1\n",
    "periodic.txt": "weft program 1\nmicrobatches 1\ngraph chain 1\nplace 0\n"
    "period 1 versions 1 repeats 3\n",
    "cut.json": '{"format": "weft.program", "version": 1, "microbatches": 2,\n'
    '"graph": {"stages": 2}, "placement": [[0, 1]], "lanes": [], "columns":'
    ' {"stage": [], "kind": [], "microbatch": []}}',
}


@pytest.mark.parametrize("name", WITHOUT)
@pytest.mark.parametrize("line", [line for line in LINES if line != ("compare",)])
def test_no_command_takes_a_program_without_lanes(
    name: str, line: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(WITHOUT[name])
    refused(weft(line[0], name, *line[1:]), f"{name}: ", "is the file cut off?")


@pytest.mark.parametrize("name", WITHOUT)
def test_no_program_without_lanes_is_trained(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / name
    path.write_text(WITHOUT[name])
    refused(weft("train", "--schedule", str(path)), f"{name}: ", "is the file cut off?")


def test_nobody_can_make_a_program_without_lanes() -> None:
    """So that check, simulate and Pipeline never meet one."""
    with pytest.raises(InputError, match="none: no lanes, so no device does anything"):
        Program.build("none", Placement.straight(2), [], microbatches=2)
    period = Period((), (), microbatches=2)
    with pytest.raises(InputError, match="no lanes"):
        Program.build("none", Placement.straight(2), [], microbatches=2, period=period)
    for name, read in (("cut.txt", from_text), ("cut.json", from_json)):
        with pytest.raises(NotationError, match="is the file cut off"):
            read(WITHOUT[name])
