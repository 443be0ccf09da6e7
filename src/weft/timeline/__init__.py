"""Timeline: a program with start and end times, simulated or measured alike."""

from weft.timeline.critical import CriticalPath
from weft.timeline.idle import CAUSES, Cause, Idle, Stretches
from weft.timeline.memory import Category, Usage
from weft.timeline.timeline import Bubble, Timeline

__all__ = [
    "CAUSES",
    "Bubble",
    "Category",
    "Cause",
    "CriticalPath",
    "Idle",
    "Stretches",
    "Timeline",
    "Usage",
]
