"""Lowering: passes from Program to Program that add what an order of computations leaves out."""

from weft.lower.executable import executable
from weft.lower.experts import experts
from weft.lower.offload import offload
from weft.lower.order import launch_order
from weft.lower.pairs import overlapping, unpaired
from weft.lower.recompute import recompute, recompute_early
from weft.lower.split import split, split_late
from weft.lower.updates import updates
from weft.lower.wires import Messages, messages, unwired, wires

__all__ = [
    "Messages",
    "executable",
    "experts",
    "launch_order",
    "messages",
    "offload",
    "overlapping",
    "recompute",
    "recompute_early",
    "split",
    "split_late",
    "unpaired",
    "unwired",
    "updates",
    "wires",
]
