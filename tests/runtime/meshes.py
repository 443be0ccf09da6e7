"""Meshes between threads or within one: sockets without processes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from weft.runtime.ranks.mesh import Mesh


@contextmanager
def meshes(ranks: int) -> Iterator[list[Mesh]]:
    """A mesh for each rank, all in this process; nothing they wait for takes longer than 30 s."""
    records, files = _paired(ranks), _paired(ranks)
    made = [Mesh(rank, records[rank], files[rank]) for rank in range(ranks)]
    for mesh in made:
        mesh.deadline = 30.0
    try:
        yield made
    finally:
        for mesh in made:
            mesh.close()


def _paired(ranks: int) -> list[dict[int, socket.socket]]:
    """For each rank, its ends of sockets to all others."""
    ends: list[dict[int, socket.socket]] = [{} for _ in range(ranks)]
    for one in range(ranks):
        for other in range(one + 1, ranks):
            ends[one][other], ends[other][one] = socket.socketpair()
    return [dict(sorted(peers.items())) for peers in ends]
