"""`docs/choose.md`: each recommendation, simulated on devices that have just so much memory."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import weft_json
from weft.cost import DEVICES
from weft.notation import to_json
from weft.schedules import REGISTRY

PAGE = Path(__file__).parents[1] / "docs" / "choose.md"
SHAPES = (("-d", "8", "-n", "24"), ("-d", "8", "-n", "48"))
MODEL = ("--model", "gpt-6.2b")
EXACT = [schedule.name for schedule in REGISTRY if not schedule.is_asynchronous]

shapes = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"n={shape[-1]}")


def recommended(situation: str) -> list[tuple[str, str]]:
    """Schedule and relief of the row that begins so."""
    rows = re.findall(r"^\| (.*?) \| (.*?) \| (.*?) ?\|$", PAGE.read_text(), re.MULTILINE)
    (advice,) = [then for when, then, _ in rows if when.startswith(situation)]
    flags = " ".join(re.findall(r"`(--(?:recompute|offload) all)`", advice))
    return [(name, flags) for name in re.findall(r"\[([\w-]+)\]\(gallery/", advice)]


def situations() -> list[str]:
    rows = re.findall(r"^\| (.*?) \| (\[.*?) \| .*?\|$", PAGE.read_text(), re.MULTILINE)
    return [situation for situation, _ in rows]


@cache
def needs(shape: tuple[str, ...]) -> dict[str, float]:
    """The memory that each schedule needs as it is."""
    rows = weft_json("compare", *EXACT, *shape, *MODEL, "--device", "a100")["rows"]
    return {row["name"]: max(row["memory"]["peak"]) for row in rows if not row["variant"]}


def fitting(folder: Path, memory: float, *shape: str) -> list[dict[str, Any]]:
    """What has exact gradients and fits into so much memory, the fastest first."""
    path = folder / "device.json"
    path.write_text(to_json(replace(DEVICES["a100"], memory=memory)))
    rows = weft_json("compare", *EXACT, *shape, *MODEL, "--device", str(path))["rows"]
    return [row for row in rows if max(row["memory"]["peak"]) <= memory]


def place(rows: list[dict[str, Any]], name: str, relief: str = "") -> dict[str, Any]:
    (found,) = [
        row for row in rows if (row["name"], row["variant"], row["relief"]) == (name, "", relief)
    ]
    return found


def test_what_is_recommended_fits_where_gpipe_and_its_likes_do() -> None:
    rows = weft_json("compare", *SHAPES[0], *MODEL, "--device", "a100")["rows"]
    memory = max(needs(SHAPES[0])[name] for name in ("gpipe", "dualpipe", "kimi-k2"))
    small = {row["name"] for row in rows if max(row["memory"]["peak"]) <= memory}
    for situation in situations():
        names = {name for name, _ in recommended(situation)}
        assert names
        assert names <= small, situation


@shapes
def test_where_every_device_keeps_what_the_first_of_1f1b_keeps(
    shape: tuple[str, ...], tmp_path: Path
) -> None:
    """ZB-V is the fastest as it is."""
    ((name, relief),) = recommended("the bubble hurts, and every device can keep")
    rows = fitting(tmp_path, needs(shape)["zb-h1"], *shape)  # D microbatches on every device
    plain = [row for row in rows if not row["relief"]]
    assert plain[0] == place(rows, name, relief)


@shapes
def test_where_memory_is_short(shape: tuple[str, ...], tmp_path: Path) -> None:
    """V-Half is the fastest as it is where 1F1B does not fit, V-Min where V-Half does not."""
    (first, _), (second, _) = recommended("memory is short")
    for name, too_large in ((first, "1f1b"), (second, first)):
        memory = needs(shape)[too_large] - 1
        rows = [row for row in fitting(tmp_path, memory, *shape) if not row["relief"]]
        plain = [row for row in rows if "recompute" not in row["variant"]]
        assert plain[0] == place(plain, name)


@shapes
def test_where_memory_is_very_short(shape: tuple[str, ...], tmp_path: Path) -> None:
    """It fits where only naive does as it is; near the fastest and the leanest that recompute."""
    ((name, relief),) = recommended("memory is very short")
    rows = fitting(tmp_path, needs(shape)["v-min"] - 1, *shape)
    plain = [row for row in rows if not row["relief"] and "recompute" not in row["variant"]]
    assert [row["name"] for row in plain] == ["naive"]
    found = place(rows, name, relief)
    again = [row for row in rows if row["relief"] == relief or "recompute" in row["variant"]]
    assert found["time"] <= 1.1 * min(row["time"] for row in again)
    assert max(found["memory"]["peak"]) <= 1.05 * min(max(row["memory"]["peak"]) for row in again)
    assert found["time"] < 0.3 * place(rows, "naive")["time"]
