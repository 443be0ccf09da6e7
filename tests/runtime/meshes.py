"""Meshes between threads or within one: sockets without processes."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations

from weft.runtime.ranks.mesh import Mesh
from weft.runtime.ranks.tree import tree_of


@contextmanager
def meshes(ranks: int, *neighbours: tuple[int, int]) -> Iterator[list[Mesh]]:
    """A mesh for each rank, all in this process; nothing they wait for takes longer than 30 s.

    Neighbours are connected though the tree may not join them.
    """
    trees = [tree_of(rank, ranks) for rank in range(ranks)]
    linked = [(rank, link) for rank, tree in enumerate(trees) for link in tree.beyond]
    joined = sorted({(min(pair), max(pair)) for pair in (*linked, *neighbours)})
    records = _paired(ranks, joined)
    files = _paired(ranks, [*combinations(range(ranks), 2)])
    made = [Mesh(rank, records[rank], files[rank], trees[rank]) for rank in range(ranks)]
    for mesh in made:
        mesh.deadline = 30.0
    try:
        yield made
    finally:
        for mesh in made:
            mesh.close()


def _paired(ranks: int, pairs: Sequence[tuple[int, int]]) -> list[dict[int, socket.socket]]:
    """For each rank, its ends of sockets to others."""
    ends: list[dict[int, socket.socket]] = [{} for _ in range(ranks)]
    for one, other in pairs:
        ends[one][other], ends[other][one] = socket.socketpair()
    return [dict(sorted(peers.items())) for peers in ends]
