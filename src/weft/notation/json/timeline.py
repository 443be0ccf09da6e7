"""Timelines as JSON: a program, its cost, and when each of its actions started and ended.

    {"format": "weft.timeline", "version": 1, "measured": false,
     "program": {"format": "weft.program", "version": 1, "microbatches": 1,
                 "graph": {"stages": 1}, "placement": [[0]],
                 "lanes": [{"device": 0, "actions": 2}],
                 "columns": {"stage": 0, "kind": ["F", "B"], "microbatch": 0}},
     "cost": {"format": "weft.cost", "version": 1, "stages": [{"forward": 1, "input_grad": 2}]},
     "start": [0.0, 1.0], "end": [1.0, 3.0]}

`start` and `end` are in seconds and in the order of the program's columns.
"""

from __future__ import annotations

import numpy as np

from weft.errors import InputError
from weft.notation.json.cost import cost_object, read_cost
from weft.notation.json.program import program_object, read_program
from weft.notation.json.reading import VERSION, Node
from weft.timeline import Timeline

FORMAT = "weft.timeline"

_NEEDED = ("program", "cost", "start", "end")


def timeline_object(timeline: Timeline) -> dict[str, object]:
    """What `read_timeline` reads."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "measured": timeline.is_measured,
        "program": program_object(timeline.program),
        "cost": cost_object(timeline.cost),
        "start": timeline.start.tolist(),
        "end": timeline.end.tolist(),
    }


def read_timeline(node: Node) -> Timeline:
    """The timeline of a document."""
    members = node.document(FORMAT, ("measured", *_NEEDED), _NEEDED)
    program = read_program(members["program"])
    cost = read_cost(members["cost"])
    with members["cost"].place():
        cost.check_fits(program)
    start = np.array(members["start"].numbers(exactly=len(program)))
    end = np.array(members["end"].numbers(exactly=len(program)))
    if (end < start).any():
        first = int((end < start).argmax())
        with members["end"].place():
            raise InputError(f"action {first} ends before it starts")
    is_measured = "measured" in members and members["measured"].flag()
    return Timeline(program=program, cost=cost, start=start, end=end, is_measured=is_measured)
