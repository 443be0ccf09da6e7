"""The page on synthesis shows what happens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.cli.running import weft

PAGE = (Path(__file__).parents[2] / "docs" / "synthesis.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_its_python_runs() -> None:
    names: dict[str, Any] = {}
    exec(compile(blocks("python")[0], "example", "exec"), names)  # noqa: S102  our own document
    assert names["found"].is_optimal
    assert names["found"].program.name == "synthesised-4x8-cap2-3"


def test_its_lines_are_printed(tmp_path: Path) -> None:
    command, lines, *_ = blocks("console")
    words = command.removeprefix("$ weft ").split()
    result = weft(*words[:-1], str(tmp_path / words[-1]))
    assert result.stdout.endswith(lines)
    assert weft("draw", str(tmp_path / "mine.txt")).exit_code == 0
