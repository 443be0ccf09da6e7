"""Replicas in time: gradients are summed first within each node, then between nodes.

What leaves a node is shared by its copies, each of which has a link of its own: on 8 devices with a
copy each, an eighth of the gradients goes over each of their links.
"""

from __future__ import annotations

from weft.cost.cost import Link
from weft.cost.setting import Setting


def summing(setting: Setting, size: float, *, among: int) -> float:
    """Seconds in which this many bytes of gradients and weights are scattered and gathered.

    among  groups of each replica that hold the same: those that share the experts, or one
    """
    copies = among * setting.layout.replicas * setting.pipes
    if copies == 1 or not size:
        return 0.0
    near = min(copies, _within_node(setting, among))
    seconds = _around(setting.device.near, size, near)
    return seconds + _around(setting.device.far, size / near, copies / near)


def _around(link: Link, size: float, copies: float) -> float:
    return link.latency + link.seconds(size * (copies - 1) / copies) if copies > 1 else 0.0


def _within_node(setting: Setting, among: int) -> int:
    """Copies that stand in one node."""
    layout, room = setting.layout, setting.device.per_node
    groups = min(among, max(1, room // layout.tensor))
    pipelines = room // (layout.processors * setting.devices)
    return groups * pipelines * setting.pipes if pipelines else groups
