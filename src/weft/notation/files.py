"""Files: the one place where the notation touches a disk."""

from __future__ import annotations

import re
from os import PathLike
from pathlib import Path
from typing import TypeAlias, TypeVar

from weft.cost import Cluster, Cost, Device, Transformer
from weft.errors import NotationError
from weft.ir.graph import Graph
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.notation.json.document import Document, from_json
from weft.notation.json.graph import graph_from_json
from weft.notation.json.huggingface import is_config, read_config
from weft.notation.json.reading import parse
from weft.notation.limits import MOST_BYTES
from weft.notation.places import in_source
from weft.notation.text.program import from_text
from weft.notation.torch.reading import from_torch_csv
from weft.timeline import Timeline

Source: TypeAlias = str | PathLike[str]
Read = TypeVar("Read", Program, Cost, Timeline, Transformer, Device, Cluster)

_NAMES: dict[type[Document], str] = {
    Program: "program",
    Cost: "cost",
    Timeline: "timeline",
    Transformer: "model",
    Device: "device",
    Cluster: "cluster",
}


def read_program(path: Source) -> Program:
    """The program of a file: text, JSON or torch's table, by its content, then by its name."""
    text, source = text_of(path), str(path)
    start = _first_line(text)
    if start.startswith("{"):
        return _document(text, source, Program)
    is_table = source.lower().endswith(".csv") and not start.startswith("weft ")
    if is_table or start[0] in "0123456789(,":
        return from_torch_csv(text, source)
    return from_text(text, source)


def read_cost(path: Source) -> Cost:
    """The cost of a JSON file."""
    return _document(text_of(path), str(path), Cost)


def read_timeline(path: Source) -> Timeline:
    """The timeline of a JSON file."""
    return _document(text_of(path), str(path), Timeline)


def read_model(path: Source) -> Transformer:
    """The model of a JSON file: Weft's own, or a config.json of Hugging Face."""
    text, source = text_of(path), str(path)
    with in_source(source):
        if is_config(root := parse(text)):
            return read_config(root)
    return _document(text, source, Transformer)


def is_huggingface(path: Source) -> bool:
    """Whether a file is a config.json of Hugging Face."""
    with in_source(str(path)):
        return is_config(parse(text_of(path)))


def read_device(path: Source) -> Device:
    """The device of a JSON file."""
    return _document(text_of(path), str(path), Device)


def read_cluster(path: Source) -> Cluster:
    """The cluster of a JSON file."""
    return _document(text_of(path), str(path), Cluster)


def read_graph(path: Source) -> tuple[Graph, Placement]:
    """The graph of a JSON file, and where its stages live."""
    return graph_from_json(text_of(path), str(path))


def _document(text: str, source: str, kind: type[Read]) -> Read:
    document = from_json(text, source)
    if not isinstance(document, kind):
        reason = f"a {_NAMES[type(document)]}, not a {_NAMES[kind]}"
        if isinstance(document, Timeline) and kind is Program:
            reason += "; give its program, which a run of `weft train` writes as program.txt"
        raise NotationError(reason, source=source)
    return document


def _first_line(text: str) -> str:
    """The first line that is not blank; empty where all are."""
    found = re.search(r"\S[^\n]*", text)
    return found[0].rstrip() if found else ""


def text_of(path: Source) -> str:
    """The text of a file, if it is one and not too long."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except IsADirectoryError:
        raise NotationError(
            "a folder; give a file, of a run of `weft train` its program.txt", source=str(path)
        ) from None
    except OSError as error:
        raise NotationError(f"cannot be read: {error.strerror}", source=str(path)) from None
    except ValueError as error:  # a path with a NUL
        raise NotationError(f"cannot be read: {error}", source=repr(path)) from None
    if len(content) > MOST_BYTES:
        raise NotationError(
            f"longer than the {MOST_BYTES >> 20} MiB that Weft reads", source=str(path)
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise NotationError("not text: it is not UTF-8", source=str(path), line=line) from None
    if not _first_line(text):
        raise NotationError("empty", source=str(path))
    return text
