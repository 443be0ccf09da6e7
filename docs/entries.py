"""The reference of the Python API: what every public name is, said by the code itself.

A page docs/reference/PACKAGE.md holds an example for each name in the package's `__all__`, below a
heading with that name. All else of an entry comes from the object when MkDocs calls
`on_page_markdown`: its signature, where it is defined, its docstring and its members.
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ForwardRef, Union, get_args, get_origin

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page as SitePage

from weft.schedules import Schedule

FOLDER = Path(__file__).parent / "reference"
HEADING = re.compile(r"^## (\w+)$", re.MULTILINE)
EXAMPLE = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WIDE = 88  # columns of a signature; a longer one has a line for each parameter
LONG = 30  # characters of a default
STARS: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


def on_page_markdown(
    markdown: str, /, *, page: SitePage, config: MkDocsConfig, files: Files
) -> str:
    """The page with what the code says; pages of other folders as they are."""
    folder, _, name = page.file.src_uri.partition("/")
    if folder != "reference":
        return markdown
    if name == "index.md":
        return markdown + "\n".join(_index())
    return "\n".join(_written(PackagePage(name.removesuffix(".md"), markdown)))


@dataclass(frozen=True)
class PackagePage:
    """A page of the reference as it is written: a package, and an example of each of its names."""

    package: str
    text: str

    @cached_property
    def module(self) -> types.ModuleType:
        return import_module(self.package)

    @cached_property
    def _parts(self) -> list[str]:
        return HEADING.split(self.text)

    @property
    def introduction(self) -> str:
        """What is between the title and the first name; its example comes before all others."""
        return self._parts[0].partition("\n")[2].strip()

    @cached_property
    def sections(self) -> dict[str, str]:
        """By name, what is below its heading; its example begins with an import."""
        names, texts = self._parts[1::2], self._parts[2::2]
        return {name: self._imported(name, text) for name, text in zip(names, texts, strict=True)}

    def _imported(self, name: str, text: str) -> str:
        """The text with a line that imports the name, or with it among others of its package."""
        line = f">>> from {self.package} import "
        if line in text:
            return text.strip().replace(line, f"{line}{name}, ", 1)
        imported = f"{line}{name}" if "." in self.package else ">>> import weft"
        return text.strip().replace("```pycon\n", f"```pycon\n{imported}\n", 1)

    @property
    def names(self) -> list[str]:
        """Every heading, also where a name has two."""
        return self._parts[1::2]


def pages() -> list[PackagePage]:
    """Every page of a package, `weft` itself first."""
    paths = {path.stem: path for path in FOLDER.glob("*.md") if path.stem != "index"}
    return [PackagePage(stem, paths[stem].read_text(encoding="utf-8")) for stem in sorted(paths)]


def _index() -> Iterator[str]:
    yield "\n| package | in short |"
    yield "|---|---|"
    for page in pages():
        yield f"| [{page.package}]({page.package}.md) | {_in_short(page.module, '')} |"
    yield "\n## Every name\n"
    found = [(name, page.package) for page in pages() for name in page.names]
    places = Counter(name for name, _ in found)
    links = (
        f"[{escaped(name)}]({package}.md#{_anchor(name)})"
        + (f" ({package})" if places[name] > 1 else "")
        for name, package in sorted(found, key=lambda one: (_anchor(one[0]).lower(), one))
    )
    yield "&nbsp;· ".join(links)


def _written(page: PackagePage) -> Iterator[str]:
    yield f"# {page.package}\n"
    yield "[All packages](index.md)\n{: .made-by }\n"
    yield from documented(page.module)
    yield "| name | in short |"
    yield "|---|---|"
    for name, text in page.sections.items():
        yield f"| [`{name}`](#{_anchor(name)}) | {_in_short(getattr(page.module, name), text)} |"
    yield ""
    if page.introduction:
        yield f"{page.introduction}\n"
    for name, text in page.sections.items():
        yield from _entry(name, page.module)
        yield f"{text}\n"


def _entry(name: str, module: types.ModuleType) -> Iterator[str]:
    thing = getattr(module, name)
    yield f"## `{name}` {{: #{_anchor(name)} }}\n"
    yield f"```python\n{signature(name, thing)}\n```\n"
    seen = f"; [in the gallery](../gallery/{thing.name}.md)" if isinstance(thing, Schedule) else ""
    yield f"{type_of(thing)}, defined in `{home_of(name, module)}`{seen}\n{{: .made-by }}\n"
    yield from documented(thing)
    if inspect.isclass(thing):
        yield from _members(thing)


def _anchor(name: str) -> str:
    return name.strip("_")  # which Markdown would take for emphasis


def type_of(thing: object) -> str:
    """What a thing is, in a word or two."""
    if isinstance(thing, Schedule | types.ModuleType):
        return type(thing).__name__.capitalize()
    if _is_alias(thing):
        return "Type"
    if not inspect.isclass(thing):
        return "Function" if inspect.isroutine(thing) else "Constant"
    if issubclass(thing, enum.Enum):
        return "Enumeration"
    if getattr(thing, "_is_protocol", False):
        return "Protocol"
    if issubclass(thing, Exception):
        return "Error"
    return "Named tuple" if issubclass(thing, tuple) else "Class"


def home_of(name: str, module: types.ModuleType) -> str:
    """The file that defines a name, found by who imports it from where."""
    thing = getattr(module, name)
    if inspect.ismodule(thing):
        return _file(thing)
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and name in [one.name for one in node.names]:
            return home_of(name, import_module(str(node.module)))
    return _file(module)


def _file(module: types.ModuleType) -> str:
    path = Path(str(module.__file__))
    return path.relative_to(Path(str(import_module("weft").__file__)).parents[1]).as_posix()


# signatures


def signature(name: str, thing: object) -> str:
    """How a thing is called; of an enumeration its members, of other values what they are."""
    if inspect.isclass(thing) and issubclass(thing, enum.Enum):
        return "\n".join(f"{name}.{line}" for line in _lines_of_members(thing))
    if inspect.isclass(thing) and getattr(thing, "_is_protocol", False):
        return f"class {name}(Protocol)"
    if inspect.isclass(thing) and "__init__" not in vars(thing) and issubclass(thing, Exception):
        return f"class {name}({thing.__bases__[0].__name__})"
    if callable(thing) and not _is_alias(thing):
        return call(name, inspect.signature(thing))
    if inspect.ismodule(thing):
        return f"import {thing.__name__}"
    return f"{name} = {_plainly(thing) if _is_alias(thing) else _shortened(thing)}"


def call(name: str, given: inspect.Signature, *, widest: int = WIDE) -> str:
    """A call with its parameters, in one line or in one each."""
    words = [*_parameters(given)]
    is_silent = given.return_annotation in (inspect.Signature.empty, None, "None")
    returned = "" if is_silent else f" -> {_annotation(given.return_annotation)}"
    line = f"{name}({', '.join(words)}){returned}"
    if len(line) <= widest:
        return line
    lines = "".join(f"    {word},\n" for word in words)
    return f"{name}(\n{lines}){returned}"


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    hidden = re.compile("self|cls|_.*")
    given = [one for one in signature.parameters.values() if not hidden.fullmatch(one.name)]
    kinds = [one.kind for one in given]
    for index, one in enumerate(given):
        is_first = one.kind not in kinds[:index]
        is_open = inspect.Parameter.VAR_POSITIONAL in kinds[:index]
        if one.kind is one.KEYWORD_ONLY and is_first and not is_open:
            yield "*"
        stars = STARS.get(one.kind, "")
        typed = "" if one.annotation is one.empty else f": {_annotation(one.annotation)}"
        default = "" if one.default is one.empty else f" = {_default(one.default)}"
        yield f"{stars}{one.name}{typed}{default}"


def _annotation(given: object) -> str:
    if isinstance(given, ForwardRef):
        return given.__forward_arg__
    return given if isinstance(given, str) else _plainly(given)


def _default(value: object) -> str:
    """A default as one would type it; `...` where that would be long or has no words."""
    if is_dataclass(value) and _is_bare(value):
        return f"{type(value).__name__}()"
    words = str(value) if isinstance(value, enum.Enum) else repr(value)
    return "..." if words.startswith("<") or len(words) > LONG else words


def _is_bare(value: object) -> bool:
    """Whether a value is what its class gives without arguments."""
    try:
        return bool(value == type(value)())
    except TypeError:
        return False


def _lines_of_members(thing: type[enum.Enum]) -> Iterator[str]:
    """The lines that define members, as comments beside them say what they are."""
    for line in inspect.getsource(thing).splitlines():
        word, _, value = line.strip().partition(" = ")
        if value and word in thing.__members__:
            yield line.strip()


def _shortened(value: object) -> str:
    """A value, with what is long left out."""
    if isinstance(value, dict) and len(repr(value)) > WIDE:
        keys = "".join(f"    {key!r}: ...,\n" for key in value)
        return f"{{\n{keys}}}"
    words = re.sub(r"<(\w+\.\w+): .*?>", r"\1", repr(value))
    return f"{type(value).__name__}(...)" if len(words) > 2 * WIDE or " at 0x" in words else words


def _is_alias(thing: object) -> bool:
    """Whether it is a type that has no class of its own, such as a union."""
    if isinstance(thing, types.GenericAlias | types.UnionType):
        return True
    return not inspect.isclass(thing) and type(thing).__module__ == "typing"


def _plainly(annotation: Any) -> str:
    """A type without the modules of its names."""
    if get_origin(annotation) is Union:
        return " | ".join(map(_plainly, get_args(annotation)))
    is_bare = inspect.isclass(annotation) and not isinstance(annotation, types.GenericAlias)
    words = annotation.__name__ if is_bare else str(annotation)
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", words)


# docstrings


def documented(thing: object) -> Iterator[str]:
    """A docstring as Markdown: what is aligned by hand stays as it is."""
    for block in re.split(r"\n\s*\n", docstring(thing)):
        if re.search(r"\S  +\S|^ |[─│]", block, re.MULTILINE):
            yield f"``` {{ .text .aligned }}\n{block}\n```\n"
        elif block:
            yield f"{escaped(block)}\n"


def docstring(thing: object) -> str:
    """What a thing says of itself; a value has no words of its own."""
    if isinstance(thing, Schedule):
        summary = f"{thing.summary[0].upper()}{thing.summary[1:]}."
        return f"{summary}\n\nCalled with the fields of a `Shape`, by name."
    is_value = not (inspect.isclass(thing) or inspect.isroutine(thing) or inspect.ismodule(thing))
    return "" if is_value else inspect.getdoc(thing) or ""


def escaped(words: str) -> str:
    """Words that Markdown shall take as they are, but for code in backticks."""
    pieces = re.split(r"(`[^`]*`)", words)
    return "".join(
        piece if piece.startswith("`") else re.sub(r"([\\|*_<>\[\]])", r"\\\1", piece)
        for piece in pieces
    )


def _in_short(thing: object, text: str) -> str:
    """The first paragraph of a docstring, or of what the page says in place of one."""
    words = docstring(thing) or EXAMPLE.sub("", text).strip()
    first = " ".join(re.split(r"\n\s*\n", words)[0].split())
    return escaped(first) if docstring(thing) else first


# members


def members(owner: type) -> dict[str, Any]:
    """Public methods and properties that Weft gives a class, in the order of the code."""
    found: dict[str, Any] = {}
    for base in reversed(owner.__mro__):
        if base.__module__.startswith("weft."):
            found |= {name: one for name, one in vars(base).items() if _is_member(name, one)}
    return found


def _is_member(name: str, one: object) -> bool:
    computed = (property, cached_property, classmethod, staticmethod, types.FunctionType)
    return isinstance(one, computed) and not name.startswith("_")


def _members(owner: type) -> Iterator[str]:
    for name, one in members(owner).items():
        yield f"`{_member(name, one, owner)}`"
        words = "\n".join(documented(_function(one, name, owner))).strip()
        yield ":   " + words.replace("\n", "\n    ") + "\n"


def _member(name: str, one: Any, owner: type) -> str:
    function = _function(one, name, owner)
    given = inspect.signature(function)
    if isinstance(one, property | cached_property):
        return f"{name}: {_annotation(given.return_annotation)}"
    full = f"{owner.__name__}.{name}" if isinstance(one, classmethod | staticmethod) else name
    return call(full, given, widest=10**6)


def _function(one: Any, name: str, owner: type) -> Any:
    """What computes a member."""
    if isinstance(one, property):
        return one.fget
    if isinstance(one, cached_property):
        return one.func
    return getattr(owner, name)
