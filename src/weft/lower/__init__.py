"""Lowering: passes from Program to Program that add what an order of computations leaves out."""

from weft.lower.edges import over
from weft.lower.executable import executable
from weft.lower.experts import experts
from weft.lower.groups import groups_of, launched_after
from weft.lower.meetings import Groups, Meetings
from weft.lower.offload import Amount, check_amount, offload, offloads, onload_steps
from weft.lower.order import launch_order
from weft.lower.pairs import overlapping, unpaired
from weft.lower.recompute import recompute, recompute_early
from weft.lower.replicas import replicated
from weft.lower.split import split, split_late
from weft.lower.step_order import StepOrder, step_order
from weft.lower.transfers import launched_together, one_wire, transfer_steps
from weft.lower.updates import updates
from weft.lower.whole import whole
from weft.lower.wires import Messages, messages, unwired, wires

__all__ = [
    "Amount",
    "Groups",
    "Meetings",
    "Messages",
    "StepOrder",
    "check_amount",
    "executable",
    "experts",
    "groups_of",
    "launch_order",
    "launched_after",
    "launched_together",
    "messages",
    "offload",
    "offloads",
    "one_wire",
    "onload_steps",
    "over",
    "overlapping",
    "recompute",
    "recompute_early",
    "replicated",
    "split",
    "split_late",
    "step_order",
    "transfer_steps",
    "unpaired",
    "unwired",
    "updates",
    "whole",
    "wires",
]
