"""One word, one meaning: type names within a package, and the English of what users read."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.running import weft
from weft.cli import COMMANDS
from weft.schedules import REGISTRY

ROOT = Path(__file__).parent.parent
SOURCE, TESTS = ROOT / "src" / "weft", ROOT / "tests"

# What style.md says to avoid, in what users read, with what to say instead.
BANNED = {
    r"stands? still": "is idle; no device can proceed: a deadlock",
    r"behind": "after",
    r"so many": "this many, as many",
    r"on and on|for ever|again and again": "indefinitely",
    r"told|tells?|hears?": "sends, reports, receives, says",
    r"flow(s|ing)|flush(es|ing)?": "asynchronous",
    r"late weights|late by|late updates|delayed": "stale, asynchronous",
    r"lags?": "staleness, latency, offset",
    r"at its highest|of the attention": "peak learning rate, attention heads",
    r"shelf|shelves|makers?": "what it holds",
}
# Where a word is meant as it stands: a name that others gave, or that code has.
ALLOWED = ("PipeDream-flush", "--lag")

DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


ASSETS = sorted(path for path in (SOURCE / "web" / "assets").iterdir())


def types_of(tree: ast.Module) -> Iterator[str]:
    """The names of a module's classes and aliases; a type variable names no type."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
            yield ast.unparse(node.target)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            name = ast.unparse(node.targets[0])
            if re.fullmatch(r"_?[A-Z]\w*[a-z]\w*", name):  # an alias that does not say so
                yield name


def defined() -> dict[tuple[str, str], list[str]]:
    """Where each type of each top-level package is defined."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        inside = path.relative_to(SOURCE)
        for name in types_of(ast.parse(path.read_text(encoding="utf-8"))):
            found[inside.parts[0].removesuffix(".py"), name].append(str(inside))
    return found


def test_no_type_name_has_two_meanings_in_a_package() -> None:
    twice = {name: paths for (_, name), paths in defined().items() if len(paths) > 1}
    assert not twice


def test_types_are_found_however_they_are_written() -> None:
    module = "class A: ...\nB: TypeAlias = int\n_Cd = dict[str, int]\nD = TypeVar('D')\nE = x[0]\n"
    assert [*types_of(ast.parse(module))] == ["A", "B", "_Cd"]
    assert len(defined()[("request", "Request")]) == 1


def banned_in(text: str) -> list[str]:
    """Each line with a word that is to be avoided, and what to say instead."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        plain = line
        for allowed in ALLOWED:
            plain = plain.replace(allowed, "")
        for words, instead in BANNED.items():
            if match := re.search(rf"\b({words})\b", plain, re.IGNORECASE):
                found.append(f"{number}: {match[0]!r}; say: {instead}")
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_are_plain_english(path: Path) -> None:
    assert not banned_in(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_is_plain_english(command: str) -> None:
    answer = weft(*command.split(), "--help")
    assert answer.exit_code == 0
    assert not banned_in(answer.stdout)


@pytest.mark.parametrize("path", ASSETS, ids=lambda path: path.name)
def test_the_page_is_plain_english(path: Path) -> None:
    assert not banned_in(path.read_text(encoding="utf-8"))


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Strings, docstrings, comments and the names that a file defines, as words; by line."""
    code = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name.replace("_", " ")
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@pytest.mark.parametrize("folder", [SOURCE, TESTS], ids=lambda folder: folder.name)
def test_code_is_plain_english(folder: Path) -> None:
    found = {
        f"{path.relative_to(folder)}:{line}": banned
        for path in sorted(folder.rglob("*.py"))
        if path != Path(__file__)
        for line, text in texts_of(path)
        if (banned := banned_in(text))
    }
    assert not found


def test_texts_are_found_wherever_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text('"""A."""\n\n\ndef _be_it() -> str:  # C\n    return f"D{1}"\n')
    assert {text.strip("# ") for _, text in texts_of(path)} == {"A.", "be it", "C", "D"}


def test_schedules_are_described_in_plain_english() -> None:
    listed = weft("list").stdout + "".join(weft("list", one.name).stdout for one in REGISTRY)
    assert not banned_in(listed)


@pytest.mark.parametrize(
    "line",
    ["Of a run that does not flush.", "The program stands still.", "two updates behind", "no lag"],
)
def test_words_to_avoid_are_found(line: str) -> None:
    assert banned_in(line)
    assert not banned_in("PipeDream-flush, which is 1F1B; latency; a flagged later update")
