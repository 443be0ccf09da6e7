"""Everyone: the ranks of all pipelines of a mesh, which save together and fail together.

    mesh (pp, tp) of 2 x 2    pipeline of ranks 0 2 ──┐
                              pipeline of ranks 1 3 ──┴── everyone: ranks 0 1 2 3

Pipelines that hold shards of the same stages meet in torch's collectives alone, which know nothing
of each other's failures. So these ranks have a mesh of sockets of their own besides, over which a
thread of each receives what happens in the others. Where there is one pipeline, its mesh will do.
"""

from __future__ import annotations

from typing import Protocol

from weft.runtime.ranks.blame import DEVICE, RANK, named
from weft.runtime.ranks.members import Members
from weft.runtime.ranks.mesh import Mesh
from weft.runtime.ranks.rendezvous import meet


class Everyone(Protocol):
    """All processes of a run.

    rank  the number of this one
    noun  what such a number is of
    """

    @property
    def rank(self) -> int: ...

    @property
    def noun(self) -> str: ...

    def gather(self, share: bytes, what: str) -> list[bytes]:
        """What every process knows, in their order; all of them ask."""


class OneProcess:
    """A process that is alone."""

    rank, noun = 0, DEVICE

    def gather(self, share: bytes, what: str) -> list[bytes]:
        return [share]


def everyone_of(members: Members, mesh: Mesh, deadline: float | None) -> Mesh:
    """A mesh of all ranks; that of the pipeline where there is no other pipeline."""
    if not members.everyone:
        return mesh
    found = meet(Members(members.everyone), deadline).mesh
    found.noun = RANK
    mesh.fail_with(found, f" (in the pipeline of {named(members.ranks, RANK)})")
    return found
