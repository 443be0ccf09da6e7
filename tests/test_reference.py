"""The reference of the Python API: every public name has an example, and every example holds."""

from __future__ import annotations

import doctest
import inspect
import re
from io import StringIO
from pathlib import Path
from pkgutil import iter_modules

import pytest

import weft
from docs.entries import (
    EXAMPLE,
    PackagePage,
    docstring,
    documented,
    escaped,
    members,
    pages,
    signature,
)
from weft.cost import PerStage
from weft.draw import Look
from weft.errors import InputError
from weft.ir import Layer
from weft.lower import Amount
from weft.notation import token
from weft.runtime import split
from weft.timeline import Bubble

ROOT = Path(__file__).parents[1]
PAGES = {page.package: page for page in pages()}
INTERNAL = {"weft.__main__", "weft.cli", "weft.settled"}  # nobody imports these
IMPORTS = re.compile(
    r"^ *(?:>>> )?from (weft[\w.]*) import (\(.*?\)|[^\n]*)", re.MULTILINE | re.DOTALL
)

each_page = pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)


def test_every_package_has_a_page() -> None:
    inside = {f"weft.{module.name}" for module in iter_modules(weft.__path__)}
    missing = sorted({"weft", *inside} - INTERNAL - {*PAGES})
    said = "each needs an __all__ and a page docs/reference/PACKAGE.md with an example of each name"
    assert not missing, f"{missing}: {said}"


@each_page
def test_every_public_name_has_one_example_and_no_other_name_has(page: PackagePage) -> None:
    path, public = f"docs/reference/{page.package}.md", page.module.__all__
    missing = [name for name in public if name not in page.names]
    unknown = [name for name in page.names if name not in public]
    assert not missing, f"add an example of each to {path}, below '## NAME': {missing}"
    assert not unknown, f"{unknown} of {path} are not in {page.package}.__all__; remove them"
    assert len(page.names) == len(public), f"{path} has a name twice"


@each_page
def test_every_example_shows_the_name_that_it_is_for(page: PackagePage) -> None:
    for name, text in page.sections.items():
        lines = "".join(EXAMPLE.findall(text)).splitlines()
        shown = "\n".join(line for line in lines if not line.startswith(">>> from weft"))
        said = f"the example of {name} in docs/reference/{page.package}.md"
        assert re.search(rf"\b{name}\b", shown), f"{said} does not use it"


@each_page
def test_every_public_name_is_described(page: PackagePage) -> None:
    """By its docstring, or on the page, where it is a value that has none."""
    for name, text in page.sections.items():
        thing = getattr(page.module, name)
        assert docstring(thing) or EXAMPLE.sub("", text).strip(), f"{page.package}.{name}"
        if inspect.isclass(thing):
            for member, one in members(thing).items():
                assert inspect.getdoc(one), f"{page.package}.{name}.{member} has no docstring"


@each_page
def test_every_example_gives_what_is_shown(
    page: PackagePage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    shared: dict[str, object] = {"__name__": "reference"}
    _run(page.introduction, shared, page.package)
    for name, text in page.sections.items():
        _run(text, {**shared}, f"{page.package}.{name}")


def _run(text: str, names: dict[str, object], title: str) -> None:
    """Run the examples of a text, which leave their names in a namespace."""
    said, runner = StringIO(), doctest.DocTestRunner(verbose=False)
    code = "".join(EXAMPLE.findall(text))
    example = doctest.DocTestParser().get_doctest(code, names, title, None, None)
    runner.run(example, out=said.write, clear_globs=False)
    names.update(example.globs)
    assert not runner.failures, said.getvalue()


def test_signatures_are_as_one_would_write_them() -> None:
    assert signature("token", token) == "token(program: Program, index: int) -> str"
    assert signature("Bubble", Bubble) == "Bubble(wall: float, span: float)"
    assert signature("Look", Look).endswith(
        "size: Size = Size(), theme: Theme = ..., has_memory: bool = False)"
    )
    assert signature("Amount", Amount) == "Amount = Literal['none', 'auto', 'all'] | float"
    assert signature("PerStage", PerStage) == "PerStage = tuple[float, ...]"
    assert signature("Layer", Layer).splitlines()[0] == "Layer.EXPERTS = tuple(Part)"
    assert signature("InputError", InputError) == "class InputError(WeftError)"
    assert "\n    *,\n    stages: int | None = None,\n" in signature("split", split)


def test_what_a_docstring_aligns_stays_aligned() -> None:
    said = "".join(documented(Bubble))
    assert said.startswith("The fraction of device time that is idle")
    assert "\nwall  the window is the makespan of all devices: a barrier ends the step\n" in said
    assert escaped("a_b of `c_d` < *") == r"a\_b of `c_d` \< \*"


def test_the_documents_import_public_names_alone() -> None:
    """Whoever follows a guide uses nothing that may change without notice."""
    documents = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*")]
    for path in documents:
        for package, names in IMPORTS.findall(path.read_text(encoding="utf-8")):
            assert package in PAGES, f"{path.name} imports from {package}, which has no page"
            for name in re.findall(r"(\w+)(?: as \w+)?", names):
                public = {*PAGES[package].module.__all__, *_inside(package)}
                assert name in public, f"{path.name} imports {name} of {package}"


def _inside(package: str) -> set[str]:
    """The packages with pages that are inside of one."""
    return {page.removeprefix(f"{package}.") for page in PAGES if page.startswith(f"{package}.")}
