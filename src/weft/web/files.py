"""Files: what a reader drops on a live page, read as data by its content; nothing is executed."""

from __future__ import annotations

from typing import TypeAlias

from weft.cost import Cost
from weft.errors import InputError
from weft.ir.program import Program
from weft.notation import from_json, from_text, from_torch_csv
from weft.notation.json.huggingface import is_config, read_config
from weft.notation.json.reading import parse
from weft.notation.places import in_source
from weft.request import Plan, is_plan, plan_from_json
from weft.timeline import Timeline
from weft.web.descriptions import Description

Dropped: TypeAlias = Program | Timeline | Plan | Description


def read_file(text: str, source: str) -> Dropped:
    """A program, a timeline, a plan, or what describes a model, a device or a cluster."""
    if not text.strip():
        raise InputError(f"{source}: it is empty")
    start = text.lstrip()[0]
    if start == "{":
        return _document(text, source)
    if start in "0123456789(,":
        return from_torch_csv(text, source)
    return from_text(text, source)


def _document(text: str, source: str) -> Dropped:
    with in_source(source):
        if is_config(root := parse(text)):
            return read_config(root)
    if is_plan(text):
        return plan_from_json(text, source)
    found = from_json(text, source)
    if isinstance(found, Cost):
        raise InputError(
            f"{source}: a cost. The page takes programs, timelines, plans, models, devices and"
            " clusters; `weft draw --cost` draws with a cost"
        )
    return found
