"""The tree: over which connections news travel from each rank to all others.

    few ranks         more of them
    0 ── 1                    0            Where all are connected, a rank sends its news to all.
    │ ╲╱ │                 ╱     ╲         Else it sends them to its parent and its children, and
    │ ╱╲ │                1       2        each of those passes them on to its other ones.
    2 ── 3               ╱ ╲     ╱ ╲
                        3   4   5   6

Knows numbers alone; opens no connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

ALL_CONNECTED = 16  # ranks that need no tree
FAN_OUT = 8  # children of a rank


@dataclass(frozen=True, slots=True)
class Tree:
    """One rank's place in the tree.

    beyond     by linked rank, all ranks whose news come over it, itself included
    parent     the linked rank on the way to rank 0, which has none
    passes_on  whether ranks learn of others over this one
    """

    rank: int
    ranks: int
    beyond: Mapping[int, frozenset[int]]
    parent: int | None
    passes_on: bool

    def toward(self, destination: int) -> int:
        """The linked rank on the way to another."""
        return next(link for link, beyond in self.beyond.items() if destination in beyond)


def tree_of(rank: int, ranks: int) -> Tree:
    """The place of a rank among this many."""
    parent = None if rank == 0 else 0
    if ranks <= ALL_CONNECTED:
        each = {other: frozenset((other,)) for other in range(ranks) if other != rank}
        return Tree(rank, ranks, each, parent, passes_on=False)
    first = FAN_OUT * rank + 1
    children = range(first, min(first + FAN_OUT, ranks))
    beyond = {child: frozenset(_below(child, ranks)) for child in children}
    if rank:
        parent = (rank - 1) // FAN_OUT
        beyond[parent] = frozenset(range(ranks)).difference(_below(rank, ranks))
    return Tree(rank, ranks, beyond, parent, passes_on=len(beyond) > 1)


def _below(rank: int, ranks: int) -> Iterator[int]:
    """A rank, its children, theirs, and so on."""
    first, last = rank, rank
    while first < ranks:
        yield from range(first, min(last + 1, ranks))
        first, last = FAN_OUT * first + 1, FAN_OUT * last + FAN_OUT
