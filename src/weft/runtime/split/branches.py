"""Branches: parts of a model that do not read each other, and could run at the same time.

stem ──┬── branch ──┬── head        a region lies between two calls that every path passes
       ├── branch ──┤               through; what is left of it without them falls apart into
       └── branch ──┘               branches
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from torch import fx

Nodes: TypeAlias = list[fx.Node]

SUBSTANCE = 0.5  # of an even share of the stages: what weighs less is not a branch


def branched(
    order: Sequence[fx.Node], weights: Mapping[fx.Node, float], least: float
) -> list[list[Nodes]]:
    """The calls of a model, in turn: one part, or several that do not read each other.

    A part of a region that weighs less than `least` is not a branch: it goes with what follows.
    """
    found: list[list[Nodes]] = []
    trunk: Nodes = []
    for inside, end in _regions(order):
        parts = _components(inside)
        heavy = [part for part in parts if sum(weights[node] for node in part) >= least]
        if len(heavy) < 2:
            trunk += inside
        else:
            found += [[trunk]] if trunk else []
            found.append(heavy)
            trunk = [node for part in parts if part not in heavy for node in part]
        trunk += end
    return [*found, [trunk]] if trunk else found


def _regions(order: Sequence[fx.Node]) -> Iterator[tuple[Nodes, Nodes]]:
    """What lies before each call that every path passes through, and that call; then the rest."""
    place = {node: index for index, node in enumerate(order)}
    starts = [
        place[node] for node in order if not any(one in place for one in node.all_input_nodes)
    ]
    inside: Nodes = []
    reach = max(starts, default=0)  # the furthest place that a path comes to past this call
    for index, node in enumerate(order):
        if reach <= index:
            yield inside, [node]
            inside = []
        else:
            inside.append(node)
        reach = max([reach, *(place[user] for user in node.users if user in place)])
    if inside:
        yield inside, []


def _components(nodes: Sequence[fx.Node]) -> list[Nodes]:
    """Which nodes are connected; each part in order, and parts by their first node."""
    root = {node: node for node in nodes}

    def find(node: fx.Node) -> fx.Node:
        while root[node] is not node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    for node in nodes:
        for read in node.all_input_nodes:
            if read in root:
                root[find(node)] = find(read)
    parts: dict[fx.Node, Nodes] = {}
    for node in nodes:
        parts.setdefault(find(node), []).append(node)
    return list(parts.values())
