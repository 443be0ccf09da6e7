"""Groups of torch that messages travel through, made for one pipeline and closed with it."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroupGloo, Store

from weft.errors import RankError
from weft.ir.kinds import Direction
from weft.runtime.ranks.forks import Sockets, opened
from weft.runtime.ranks.mesh import Mesh
from weft.runtime.transport.exchange import connected, connecting, others_of

PATIENCE = 5.0  # seconds to learn why a connection ended
LONG = datetime.timedelta(hours=1)  # as the mesh knows better how long to wait

Ends: TypeAlias = tuple[int, int, Direction]  # from rank, to rank


class Group(Protocol):
    """What a group of torch can do, by its own numbers of the ranks."""

    def send(self, tensors: list[Tensor], dstRank: int, tag: int) -> dist.Work:  # noqa: N803
        """Begin to send."""

    def recv(self, tensors: list[Tensor], srcRank: int, tag: int) -> dist.Work:  # noqa: N803
        """Begin to receive."""


class Line(NamedTuple):
    """A group for the messages of a channel, and how it numbers the two ends."""

    group: Group
    source: int
    destination: int


class Gloo:
    """A group for each direction over all ranks, known to them alone.

    Torch's own `new_group` keeps connections open until the process ends, shows anybody who reads
    the store where they are, and waits for ranks that have died.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._sockets: list[Sockets] = []
        made = {direction: self._connected(mesh) for direction in Direction}
        self.lines: Mapping[Ends, Line] = {
            (source, destination, direction): Line(group, source, destination)
            for source in range(mesh.ranks)
            for destination in range(mesh.ranks)
            for direction, group in made.items()
        }

    def shut(self) -> None:
        """End all waits for messages, here and at the other ends: gloo knows no other way."""
        for sockets in self._sockets:
            sockets.shut()

    def close(self) -> None:
        self.lines = {}  # a group closes with the last that knows it

    def _connected(self, mesh: Mesh) -> Group:
        def make(store: Store) -> Group:
            made: Any = ProcessGroupGloo(store, mesh.rank, mesh.ranks, LONG)
            return cast(Group, made)

        try:
            with opened() as sockets:
                self._sockets.append(sockets)
                return connected(mesh, make)
        except RuntimeError as error:
            others = others_of(mesh)
            raise reason_of(mesh, connecting(others), *others) from error


def reason_of(mesh: Mesh, what: str, *others: int) -> RankError:
    """Why a connection to one of these ranks ended, as the mesh knows better."""
    until = time.monotonic() + PATIENCE
    try:
        mesh.wait(lambda: time.monotonic() > until, lambda: what, *others)
    except RankError as reason:
        return reason
    return mesh.blamed("a connection has ended, and no rank says why", what)
