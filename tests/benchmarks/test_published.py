"""The page on many nodes shows what the simulator says of published runs, and its script trains."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.runtime.ranks import run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "scale.md").read_text()
NAMES = ("Traffic", "Zero Bubble", "DeepSeek-V3", "Megatron", "MegaScale")


@pytest.fixture(scope="module")
def published() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks" / "published")
        yield import_module("run")


def test_all_tables_are_on_the_page(published: ModuleType) -> None:
    assert sorted(published.TABLES) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_what_is_computed(name: str, published: ModuleType) -> None:
    assert f"<!-- {name} -->\n\n{published.table(name)}\n" in PAGE


@pytest.mark.parametrize("row", range(8))
def test_bubbles_of_1f1b_and_zb_h1_are_those_of_the_paper(row: int, published: ModuleType) -> None:
    """arXiv 2401.10241, Table 5, to all four digits."""
    given = published.ZERO_BUBBLE[row]
    for schedule, bubble in zip(published.SCHEDULES, given.published, strict=True):
        if schedule in ("1f1b", "zb-h1"):
            assert round(published._bubble(given, schedule), 4) == bubble


def run_page() -> float:
    """In each rank: the loss of the step on the page."""
    (code,) = re.findall("```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "scale.md", "exec"), names)  # noqa: S102  our own document
    return float(names["result"].loss)


def test_the_script_on_the_page_trains_two_replicas() -> None:
    assert all(math.isfinite(loss) for loss in run(4, run_page))
