"""Explanations: where the time and the memory of a timeline go, and what would help.

    account    for each device: work, idle time by cause, the longest waits
    path       the critical path in as few legs as it has
    holding    for each device: the most that it holds, of what, from when on
    options    other schedules, variants and sizes, each simulated
    relief     the same program with less in memory, where it does not fit
    costs      what shorter actions, even stages and instant wires would bring
    stages     what shorter work at a single stage would bring

All of it is data; `in_words` is for people, `record` for programs. Every figure is a timeline's.
"""

from weft.explain.costs import Change, changes
from weft.explain.explanation import Explanation, explain
from weft.explain.options import (
    Candidate,
    Option,
    TimeOf,
    all_tried,
    candidates,
    eased,
    larger,
    tried,
)
from weft.explain.record import record
from weft.explain.relief import OFFLOADED, Relief, is_fitting, reliefs, relieved
from weft.explain.section import Section
from weft.explain.stages import Help, helps
from weft.explain.words import in_words

__all__ = [
    "OFFLOADED",
    "Candidate",
    "Change",
    "Explanation",
    "Help",
    "Option",
    "Relief",
    "Section",
    "TimeOf",
    "all_tried",
    "candidates",
    "changes",
    "eased",
    "explain",
    "helps",
    "in_words",
    "is_fitting",
    "larger",
    "record",
    "reliefs",
    "relieved",
    "tried",
]
