"""Rendezvous: how the ranks of a process group find each other and connect.

    each rank      listens, and puts its address into the group's store
    lower rank     connects to the higher, and proves who it is

On one host over Unix sockets without a name in the file system, else over TCP. Whoever never
comes, or dies meanwhile, is named.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torch._C._distributed_c10d import PrefixStore, Store

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
from weft.runtime.ranks.keys import Key
from weft.runtime.ranks.mesh import Mesh

LOOPBACK = "127.0.0.1"
RECORDS, FILES = 0, 1  # purposes: what a connection carries
GLANCE = 0.5  # seconds between two looks at who still listens


@dataclass(frozen=True, slots=True)
class Met:
    """A mesh, the host of each rank, and whether all share a clock.

    Where ranks of one host cannot share memory, each counts as a host of its own.
    """

    mesh: Mesh
    hosts: Sequence[str]
    is_one_clock: bool


def meet(deadline: float | None) -> Met:
    """Connect all ranks of the default process group; no rank is waited for any longer."""
    addresses = Addresses(deadline)
    with listening_near() as near, listening_far(_own_ip(addresses.store)) as far:
        meeting = _Meeting(addresses, near, far)
        try:
            return meeting.held()
        except BaseException as error:
            meeting.give_up(error)
            raise


class _Meeting:
    """One rank's view of the ranks that have come, and of those that have not."""

    def __init__(self, addresses: Addresses, near: socket.socket, far: socket.socket) -> None:
        self._addresses, self._near, self._far = addresses, near, far
        self._rank, self._ranks = addresses.rank, addresses.ranks
        self._key = Key()
        self._mine = self._address()
        self._met: dict[Connection, socket.socket] = {}
        self._silent: set[int] = set()  # that did not listen when last looked at
        self._looked = time.monotonic()

    def held(self) -> Met:
        """The mesh, once all have come."""
        self._addresses.put(self._mine)
        self._await(self._unpublished, "to make the pipeline")
        addresses = list(self._addresses.known.values())
        is_near = bool(self._mine.path) and len({address.host for address in addresses}) == 1
        self._connect(is_near)
        self._admit(is_near)
        mesh = Mesh(self._rank, self._connections(RECORDS), self._connections(FILES))
        mesh.deadline = self._addresses.deadline
        try:
            mesh.gather(b"", "the greeting")
        except RankError as error:  # of a rank that may have said why
            raise self._reasoned(error) from None
        is_one_clock = len({address.clock for address in addresses}) == 1
        return Met(mesh, self._hosts(), is_one_clock)

    def _hosts(self) -> list[str]:
        known = sorted(self._addresses.known.items())
        return [
            address.host if address.path else f"{address.host} {rank}" for rank, address in known
        ]

    def give_up(self, error: BaseException) -> None:
        """Let everybody know who waits for this rank, by the store or by a connection."""
        reason = failure_of(error, self._rank)
        with suppress(RankError):  # the store is gone
            self._addresses.give_up(reason)
        mesh = Mesh(self._rank, self._connections(RECORDS), self._connections(FILES))
        mesh.fail(reason)
        mesh.close()

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
        self._addresses.read()
        missing = range(len(self._addresses.known), self._ranks)
        if missing:
            time.sleep(PAUSE)
        return missing

    def _connect(self, is_near: bool) -> None:
        """Open every connection to each higher rank."""
        for other in range(self._rank + 1, self._ranks):
            address = self._addresses.known[other]
            for purpose in _purposes(is_near):
                connection = Connection(self._rank, purpose)
                proof = self._key.proof(address.key, connection.words(other))
                try:
                    peer = connected(address.place(is_near=is_near), self._addresses.until)
                    self._met[Connection(other, purpose)] = peer
                    peer.sendall(HELLO.pack(*connection, proof))
                except ConnectionRefusedError:
                    cause = self._addresses.given_up() or f"device {other} died"
                    raise self._blamed(cause, [other], "to connect") from None
                except OSError as error:
                    cause = f"{address.ip}:{address.port} cannot be reached: {error}"
                    raise self._blamed(cause, [other], "to connect") from error

    def _admit(self, is_near: bool) -> None:
        """Wait until each lower rank has opened every connection."""
        proofs = {
            connection: self._key.proof(address.key, connection.words(self._rank))
            for other, address in self._addresses.known.items()
            for connection in (Connection(other, purpose) for purpose in _purposes(is_near))
            if other < self._rank
        }
        door = Door(self._near if is_near else self._far, proofs)

        def missing() -> Sequence[int]:
            if not proofs:
                return ()
            self._met.update(door.admitted(PAUSE))
            return sorted({connection.rank for connection in proofs})

        try:
            self._await(missing, "to connect")
        finally:
            door.close()

    # waiting

    def _await(self, missing: Callable[[], Sequence[int]], what: str) -> None:
        """Wait until no rank is missing; why one never comes is found out meanwhile."""
        while absent := missing():
            if reason := self._addresses.given_up() or self._lost(absent):
                raise self._blamed(reason, absent, what)
            if self._addresses.is_late:
                cause = f"nothing came within the deadline of {self._addresses.deadline:g} s"
                raise self._blamed(cause, self._addresses.missing() or absent, what)

    def _lost(self, absent: Sequence[int]) -> str | None:
        """Who died: it does not listen any more, though it has not connected to this rank.

        Looked at twice, as a connection may have come before the first look and be on its way.
        """
        if time.monotonic() < self._looked + GLANCE:
            return None
        known = self._addresses.known
        watched = absent if len(known) == self._ranks else known
        silent = {other for other in watched if self._is_silent(known[other])}
        dead, self._silent = silent & self._silent, silent
        self._looked = time.monotonic()
        return f"{devices_of(dead)} died" if dead else None

    def _is_silent(self, address: Address) -> bool:
        is_near = bool(self._mine.path) and address.host == self._mine.host
        return is_closed(address.place(is_near=is_near))

    def _reasoned(self, error: RankError) -> RankError:
        """The same error, or why another rank has given up before it closed its connections."""
        reason = self._addresses.given_up()
        others = [other for other in range(self._ranks) if other != self._rank]
        return error if reason is None else self._blamed(reason, others, "to connect")

    def _blamed(self, cause: str, others: Sequence[int], what: str) -> RankError:
        missed = f"{devices_of(others)} {what}"
        return RankError(f"{cause}; device {self._rank} was waiting for {missed}")


def _purposes(is_near: bool) -> Sequence[int]:
    return (RECORDS, FILES) if is_near else (RECORDS,)


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


def _own_ip(store: Store) -> str:
    """The address by which this host reaches the one of the store."""
    inner = store
    while isinstance(inner, PrefixStore):
        inner = inner.underlying_store
    host = getattr(inner, "host", LOOPBACK)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError:
            return LOOPBACK
        return str(probe.getsockname()[0])
