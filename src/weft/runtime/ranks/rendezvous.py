"""Rendezvous: how the ranks of a process group find each other and connect.

    each rank      listens, and puts its address into the group's store
    lower rank     connects to the higher, and proves who it is
    all            greet each other, and so learn where the others are

Connected are those that exchange messages, and those beside each other in the tree. On one host
over Unix sockets without a name in the file system, else over TCP. Whoever never comes, or dies
meanwhile, is named.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from weft.errors import RankError
from weft.runtime.ranks.addresses import Address, Addresses
from weft.runtime.ranks.blame import devices_of, failure_of
from weft.runtime.ranks.door import (
    HELLO,
    PAUSE,
    Connection,
    Door,
    connected,
    is_closed,
    listening_far,
    listening_near,
)
from weft.runtime.ranks.interfaces import is_loopback, own_ip
from weft.runtime.ranks.keys import Key
from weft.runtime.ranks.links import SLICE
from weft.runtime.ranks.members import Members
from weft.runtime.ranks.mesh import Mesh
from weft.runtime.ranks.peer import Peer
from weft.runtime.ranks.records import Record, framed
from weft.runtime.ranks.tree import tree_of

TO_MAKE = "to make the pipeline"
RECORDS, FILES = 0, 1  # purposes: what a connection carries
GLANCE = 0.5  # seconds between two looks at who still listens
OFTEN = 64  # ranks that may all ask the store as often as there are pauses


@dataclass(frozen=True, slots=True)
class Met:
    """A mesh, the host of each rank, and whether all share a clock.

    Where ranks of one host cannot share memory, each counts as a host of its own.
    """

    mesh: Mesh
    hosts: Sequence[str]
    is_one_clock: bool


def meet(
    members: Members, deadline: float | None, neighbours: Iterable[tuple[int, int]] = ()
) -> Met:
    """Connect ranks of the default process group; no rank is waited for any longer.

    Messages and open files go between neighbours; records from each rank to every other.
    """
    addresses = Addresses(members, deadline)
    with listening_near() as near, listening_far(own_ip(addresses.store)) as far:
        meeting = _Meeting(addresses, near, far, neighbours)
        try:
            return meeting.held()
        except BaseException as error:
            meeting.give_up(error)
            raise


class _Meeting:
    """One rank's view of the ranks that have come, and of those that have not."""

    def __init__(
        self,
        addresses: Addresses,
        near: socket.socket,
        far: socket.socket,
        neighbours: Iterable[tuple[int, int]],
    ) -> None:
        self._addresses, self._near, self._far = addresses, near, far
        self._rank, self._ranks = addresses.rank, addresses.ranks
        self._tree = tree_of(self._rank, self._ranks)
        self._neighbours = {sum(pair) - self._rank for pair in neighbours if self._rank in pair}
        if self._rank ^ 1 < self._ranks:
            self._neighbours.add(self._rank ^ 1)  # with which a profile measures hops
        self._wanted = sorted({*self._tree.beyond, *self._neighbours})
        self._key = Key()
        self._mine = self._address()
        self._met: dict[Connection, socket.socket] = {}
        self._mesh: Mesh | None = None
        self._pause = PAUSE * max(1, self._ranks // OFTEN)
        self._silent: set[int] = set()  # that did not listen when last looked at
        self._looked = time.monotonic()

    def held(self) -> Met:
        """The mesh, once all have come."""
        self._addresses.put(self._mine)
        self._await(self._unpublished, TO_MAKE)
        self._connect()
        self._admit()
        connections = self._connections(RECORDS), self._connections(FILES)
        self._mesh = mesh = Mesh(self._rank, *connections, self._tree)
        mesh.deadline = self._addresses.deadline
        try:
            shares = mesh.gather(self._whereabouts(), "the greeting")
        except RankError as error:  # of a rank that may have said why
            raise self._reasoned(error) from None
        hosts, clocks = zip(*map(json.loads, shares), strict=True)
        return Met(mesh, hosts, len({*clocks}) == 1)

    def _whereabouts(self) -> bytes:
        """The host and the clock of this rank, for all others."""
        mine = self._mine
        host = mine.host if mine.path else f"{mine.host} {self._rank}"
        return json.dumps([host, mine.clock]).encode()

    def give_up(self, error: BaseException) -> None:
        """Let everybody know who waits for this rank, by the store or by a connection."""
        reason = failure_of(error, self._rank)
        with suppress(RankError):  # the store is gone
            self._addresses.give_up(reason)
        if self._mesh is not None:
            self._mesh.fail(reason)
            self._mesh.close()
        for connection, opened in self._met.items():
            if self._mesh is None and connection.purpose == RECORDS:
                Peer(opened).push(framed(Record.FAILED, reason.encode()), SLICE)
            opened.close()

    def _address(self) -> Address:
        is_unix = self._near.family == socket.AF_UNIX
        return Address(
            host=_host(),
            clock=_clock(),
            path=self._near.getsockname().decode("latin-1") if is_unix else "",
            ip=self._far.getsockname()[0],
            port=self._far.getsockname()[1],
            key=self._key.public,
        )

    def _connections(self, purpose: int) -> dict[int, socket.socket]:
        """The connections for one purpose, by rank."""
        return {one.rank: self._met[one] for one in sorted(self._met) if one.purpose == purpose}

    # steps

    def _unpublished(self) -> Sequence[int]:
        missing = self._addresses.read(self._wanted)
        if missing:
            time.sleep(self._pause)
        return missing

    def _connect(self) -> None:
        """Open every connection to each higher rank."""
        for other in self._wanted:
            for purpose in self._purposes(other) if other > self._rank else ():
                address = self._addresses.known[other]
                connection = Connection(self._rank, purpose)
                proof = self._key.proof(address.key, connection.words(other))
                place = address.place(is_near=self._is_near(other))
                try:
                    peer = connected(place, self._addresses.until)
                    self._met[Connection(other, purpose)] = peer
                    peer.sendall(HELLO.pack(*connection, proof))
                except ConnectionRefusedError:
                    cause = self._addresses.given_up() or f"device {other} died"
                    raise self._blamed(cause, [other], "to connect") from None
                except OSError as error:
                    cause = f"{address.ip}:{address.port} cannot be reached: {error}"
                    raise self._blamed(cause, [other], "to connect") from error

    def _admit(self) -> None:
        """Wait until each lower rank has opened every connection."""
        near, far = self._proofs(is_near=True), self._proofs(is_near=False)
        doors = [(Door(self._near, near), near), (Door(self._far, far), far)]

        def missing() -> Sequence[int]:
            for door, proofs in doors:
                if proofs:
                    self._met.update(door.admitted(PAUSE))
            return sorted({connection.rank for connection in (*near, *far)})

        try:
            self._await(missing, "to connect")
        finally:
            for door, _ in doors:
                door.close()

    def _proofs(self, *, is_near: bool) -> dict[Connection, bytes]:
        """What lower ranks on this host, or on others, prove when they connect."""
        lower = [other for other in self._wanted if other < self._rank]
        return {
            connection: self._key.proof(
                self._addresses.known[connection.rank].key, connection.words(self._rank)
            )
            for other in lower
            if self._is_near(other) == is_near
            for connection in (Connection(other, purpose) for purpose in self._purposes(other))
        }

    def _is_near(self, other: int) -> bool:
        """Whether a rank is on the host of this one, and both have Unix sockets."""
        address = self._addresses.known[other]
        return bool(self._mine.path and address.path) and address.host == self._mine.host

    def _purposes(self, other: int) -> Sequence[int]:
        is_given_files = other in self._neighbours and self._is_near(other)
        return (RECORDS, FILES) if is_given_files else (RECORDS,)

    # waiting

    def _await(self, missing: Callable[[], Sequence[int]], what: str) -> None:
        """Wait until no rank is missing; why one never comes is found out meanwhile."""
        while absent := missing():
            if reason := self._addresses.given_up() or self._lost(absent):
                raise self._blamed(reason, self._addresses.missing(absent) or absent, what)
            if self._addresses.is_late:
                cause = f"nothing came within the deadline of {self._addresses.deadline:g} s"
                if away := self._addresses.missing():
                    raise self._blamed(cause, away, TO_MAKE)
                raise self._blamed(cause, absent, what)

    def _lost(self, absent: Sequence[int]) -> str | None:
        """Who died: it does not listen any more, though it has not connected to this rank.

        Looked at twice, as a connection may have come before the first look and be on its way.
        """
        if time.monotonic() < self._looked + GLANCE:
            return None
        known = self._addresses.known
        watched = absent if len(known) == len(self._wanted) else known
        silent = {other for other in watched if self._is_silent(other)}
        dead, self._silent = silent & self._silent, silent
        self._looked = time.monotonic()
        return f"{devices_of(dead)} died" if dead else None

    def _is_silent(self, other: int) -> bool:
        """Whether nobody listens where it said; of another host's loopback that is not known."""
        address = self._addresses.known[other]
        if address.host != self._mine.host and is_loopback(address.ip):
            return False
        return is_closed(address.place(is_near=self._is_near(other)))

    def _reasoned(self, error: RankError) -> RankError:
        """The same error, or why another rank has given up before it closed its connections."""
        reason = self._addresses.given_up()
        others = [other for other in range(self._ranks) if other != self._rank]
        return error if reason is None else self._blamed(reason, others, "to connect")

    def _blamed(self, cause: str, others: Sequence[int], what: str) -> RankError:
        missed = f"{devices_of(others)} {what}"
        return RankError(f"{cause}; device {self._rank} was waiting for {missed}")


def _host() -> str:
    """The machine, its network and the user, as far as this process sees them."""
    return f"{_machine()}/{_space('net')}/{_space('user')}/{os.geteuid()}"


def _clock() -> str:
    """The machine and its time since it started, as far as this process sees them."""
    return f"{_machine()}/{_space('time')}"


def _machine() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else socket.gethostname()


def _space(kind: str) -> int:
    """The number of one of Linux's namespaces that this process is in."""
    space = Path("/proc/self/ns", kind)
    return space.stat().st_ino if space.exists() else 0
