"""Documents: any object of Weft as versioned JSON, both ways."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeAlias

from weft.cost import Cluster, Cost, Device, Transformer
from weft.errors import NotationError
from weft.ir.program import Program
from weft.notation.json.cost import FORMAT as COST
from weft.notation.json.cost import cost_object, read_cost
from weft.notation.json.descriptions import (
    CLUSTER,
    DEVICE,
    MODEL,
    cluster_object,
    device_object,
    model_object,
    read_cluster,
    read_device,
    read_model,
)
from weft.notation.json.program import FORMAT as PROGRAM
from weft.notation.json.program import program_object, read_program
from weft.notation.json.reading import Node, parse
from weft.notation.json.timeline import FORMAT as TIMELINE
from weft.notation.json.timeline import read_timeline, timeline_object
from weft.notation.places import in_source
from weft.timeline import Timeline

LISTED = ("model", "device")

Document: TypeAlias = Program | Cost | Timeline | Transformer | Device | Cluster

_READERS: dict[str, Callable[[Node], Document]] = {
    PROGRAM: read_program,
    COST: read_cost,
    TIMELINE: read_timeline,
    MODEL: read_model,
    DEVICE: read_device,
    CLUSTER: read_cluster,
}


def to_json(thing: Document) -> str:
    """JSON that `from_json` reads back to an equal object; one line for each member."""
    match thing:
        case Program():
            members = program_object(thing)
        case Cost():
            members = cost_object(thing)
        case Timeline():
            members = timeline_object(thing)
        case Transformer():
            members = model_object(thing)
        case Device():
            members = device_object(thing)
        case Cluster():
            members = cluster_object(thing)
    try:
        lines = [f"{json.dumps(key)}: {_dumps(value)}" for key, value in members.items()]
    except ValueError:
        raise NotationError("JSON knows finite numbers only") from None
    return "{\n" + ",\n".join(lines) + "\n}\n"


def from_json(text: str, source: str = "") -> Document:
    """The object of a JSON text; NotationError where it cannot be read."""
    with in_source(source):
        root = _listed(parse(text))
        members = root.members_of_any_name()
        if "format" not in members:
            raise NotationError(f'no "format"; one of {", ".join(_READERS)} belongs here')
        name = members["format"].text()
        if name not in _READERS:
            raise members["format"].wrong(f"one of {', '.join(_READERS)}")
        return _READERS[name](root)


def _listed(root: Node) -> Node:
    """The model or device of what `weft list NAME --json` prints; else what is given."""
    members = root.members_of_any_name()
    found = [members[name] for name in LISTED if name in members]
    is_listed = "format" not in members and len(found) == 1 and isinstance(found[0].value, dict)
    return found[0] if is_listed else root


def _dumps(value: object) -> str:
    return json.dumps(value, allow_nan=False)
