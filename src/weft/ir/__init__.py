"""The instruction set: what a schedule is, and when each of its actions may start."""

from weft.ir.actions import Action, Actions, Pair
from weft.ir.dependencies import Dependencies, Missing, Value
from weft.ir.graph import Backward, Graph, Stage
from weft.ir.kinds import Direction, Kind, Layer, Part, Stream, segment
from weft.ir.lanes import Channel, Lane, Period
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.ir.versions import resident_versions, staleness
from weft.ir.weights import Sharing

__all__ = [
    "Action",
    "Actions",
    "Backward",
    "Channel",
    "Dependencies",
    "Direction",
    "Graph",
    "Kind",
    "Lane",
    "Layer",
    "Missing",
    "Pair",
    "Part",
    "Period",
    "Placement",
    "Program",
    "Sharing",
    "Stage",
    "Stream",
    "Value",
    "resident_versions",
    "segment",
    "staleness",
]
