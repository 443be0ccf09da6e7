"""Plans as JSON, readable and easy to compare.

    {"format": "weft.plan", "version": 1,
     "source": "1f1b",
     "layout": {"layers": [7, 8, 8, 7], "replicas": 2},
     "model": {"layers": 30, "hidden": 4096, ...},
     "device": {"peak": 312e12, ...},
     "storage": {"optimizer": 8},
     "passes": {"recompute": "0,1", "offload": "auto"},
     "predicted": {"seconds": 1.9, "mfu": 0.42, "bubble": 0.11, "memory": [7e10, ...], ...},
     "program": {"microbatches": 8, "graph": {"stages": 4}, ...}}

"model" and "device" have the fields that files of their own have; "program" and "cost", which
stands in their place where stages were measured, are such documents without the heading.
Only "layout", "program", and model and device or cost are needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from os import PathLike
from typing import Any, NamedTuple, TypeAlias, TypeVar

from weft.cost import Device, Layout, Storage, Transformer
from weft.cost.mapping import as_mapping, keyword_arguments
from weft.errors import InputError, NotationError
from weft.notation.files import text_of
from weft.notation.json.cost import FORMAT as COST
from weft.notation.json.cost import cost_object, read_cost
from weft.notation.json.program import FORMAT as PROGRAM
from weft.notation.json.program import program_object, read_program
from weft.notation.json.reading import VERSION, Node, parse
from weft.notation.places import in_source
from weft.request.passes import Passes
from weft.request.plan import Plan, Prediction

FORMAT = "weft.plan"

Read = TypeVar("Read")
Path: TypeAlias = str | PathLike[str]

_DEPTH = 3  # of a member: a device has lists of points
_HEADING = ("format", "version")
_NEEDED = ("layout", "program")
_KEYS = tuple(field.name for field in fields(Plan))


class PlanFile(NamedTuple):
    """A plan, and the file that it was read from."""

    path: str
    plan: Plan


# writing


def plan_to_json(plan: Plan) -> str:
    """JSON that `read_plan` reads back to an equal plan; one line for each member."""
    written: dict[str, object] = {"format": FORMAT, "version": VERSION}
    if plan.source:
        written["source"] = plan.source
    for name in ("layout", "model", "device", "storage", "predicted"):
        if (value := getattr(plan, name)) is not None and (members := as_mapping(value)):
            written[name] = members
    if plan.passes.asked:
        written["passes"] = plan.passes.asked
    if plan.cost is not None:
        written["cost"] = _bare(cost_object(plan.cost))
    written["program"] = _bare(program_object(plan.program))
    try:
        lines = [
            f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}"
            for key, value in written.items()
        ]
    except ValueError:
        raise NotationError("JSON knows finite numbers only") from None
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _bare(document: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in document.items() if name not in _HEADING}


# reading


def read_plan(path: Path) -> Plan:
    """The plan of a file; NotationError says where it is wrong and why."""
    return plan_from_json(text_of(path), str(path))


def plan_from_json(text: str, source: str = "") -> Plan:
    """The plan of a JSON text; NotationError where it cannot be read."""
    with in_source(source):
        root = parse(text)
        members = root.document(FORMAT, _KEYS, _NEEDED)
        read = {name: _READERS[name](member) for name, member in _present(members).items()}
        with root.place():
            return Plan(**read)


def is_plan(text: str) -> bool:
    """Whether a text is that of a plan, right or wrong."""
    if f'"{FORMAT}"' not in text or not text.lstrip().startswith("{"):
        return False
    try:
        found = parse(text).value
    except InputError:
        return True  # of what claims to be one, its reader says what is wrong
    return isinstance(found, dict) and found.get("format") == FORMAT


def _present(members: dict[str, Node]) -> dict[str, Node]:
    """All but the heading; null stands for what is not there."""
    return {
        name: member
        for name, member in members.items()
        if name not in _HEADING and member.value is not None
    }


def _layout(node: Node) -> Layout:
    return _built(Layout, node, layers=tuple)


def _prediction(node: Node) -> Prediction:
    return _built(Prediction, node, memory=tuple)


def _built(kind: Callable[..., Read], node: Node, **made: Callable[[Any], Any]) -> Read:
    """A dataclass of plain keys and values, some of which are made into something else."""
    with node.place():
        given = keyword_arguments(kind, node.plain(depth=_DEPTH), node.path)  # type: ignore[arg-type]
        for name in made.keys() & given.keys():
            if not isinstance(given[name], list):
                raise Node(given[name], f"{node.path}.{name}").wrong("a list")
            given[name] = made[name](given[name])
        return kind(**given)


def _passes(node: Node) -> Passes:
    return _built(Passes, node)


def _from_mapping(read: Callable[[Any], Read]) -> Callable[[Node], Read]:
    def reader(node: Node) -> Read:
        with node.place():
            return read(node.plain(depth=_DEPTH))

    return reader


def _document(format: str, read: Callable[[Node], Read]) -> Callable[[Node], Read]:
    """A document without its heading, which is that of the plan."""

    def reader(node: Node) -> Read:
        members = {name: member.value for name, member in node.members_of_any_name().items()}
        return read(Node({"format": format, "version": VERSION, **members}, node.path))

    return reader


_READERS: dict[str, Callable[[Node], Any]] = {
    "program": _document(PROGRAM, read_program),
    "layout": _layout,
    "model": _from_mapping(Transformer.from_mapping),
    "device": _from_mapping(Device.from_mapping),
    "storage": _from_mapping(Storage.from_mapping),
    "passes": _passes,
    "cost": _document(COST, read_cost),
    "predicted": _prediction,
    "source": Node.text,
}
