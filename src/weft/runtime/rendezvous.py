"""Rendezvous: how the ranks of a process group find each other and connect.

    each rank      listens, and puts its address into the group's store
    lower rank     connects to the higher, and shows the token that the listener asked for

On one host over Unix sockets without a name in the file system, else over TCP.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import distributed_c10d

from weft.errors import RankError
from weft.runtime.mesh import Mesh

PATIENCE = 60.0  # seconds to find each other
HELLO_PATIENCE = 5.0  # seconds for whoever connects to say who it is
LOOPBACK = "127.0.0.1"
HELLO = struct.Struct("<II")  # rank and lane, after the token
RECORDS, FILES = 0, 1  # lanes: what a connection carries


@dataclass(frozen=True, slots=True)
class Address:
    """Where a rank listens, and which machine it sees."""

    host: str  # ranks that say the same share memory
    clock: str  # and those that say the same here, a clock
    path: str
    ip: str
    port: int
    token: str


@dataclass(frozen=True, slots=True)
class Met:
    """A mesh, and whether all its ranks share memory and a clock."""

    mesh: Mesh
    is_one_host: bool
    is_one_clock: bool


def meet() -> Met:
    """Connect all ranks of the default process group."""
    store = distributed_c10d._get_default_store()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    turn = store.add(f"weft/turn/{rank}", 1)
    with _listening_near() as near, _listening_far(_own_ip(store)) as far:
        mine = Address(
            host=_host(),
            clock=_clock(),
            path=near.getsockname().decode("latin-1") if near.family == socket.AF_UNIX else "",
            ip=far.getsockname()[0],
            port=far.getsockname()[1],
            token=secrets.token_hex(16),
        )
        store.set(f"weft/{turn}/{rank}", json.dumps(asdict(mine)))
        all_of_them = [
            Address(**json.loads(store.get(f"weft/{turn}/{other}"))) for other in range(ranks)
        ]
        is_one_host = len({address.host for address in all_of_them}) == 1 and bool(mine.path)
        listener = near if is_one_host else far
        lanes = (RECORDS, FILES) if is_one_host else (RECORDS,)
        met: dict[tuple[int, int], socket.socket] = {}
        for other in range(rank + 1, ranks):
            for lane in lanes:
                met[lane, other] = _connected(all_of_them[other], (rank, lane), is_one_host)
        while len(met) < len(lanes) * (ranks - 1):
            lane, other, peer = _accepted(listener, mine.token)
            met[lane, other] = peer
    is_one_clock = len({address.clock for address in all_of_them}) == 1
    return Met(Mesh(rank, _of(RECORDS, met), _of(FILES, met)), is_one_host, is_one_clock)


def _of(lane: int, met: Mapping[tuple[int, int], socket.socket]) -> dict[int, socket.socket]:
    """The connections of one lane, by rank."""
    return {other: met[one, other] for one, other in sorted(met) if one == lane}


def _host() -> str:
    """The machine and its network, as far as this process sees them."""
    return f"{_machine()}/{_space('net')}"


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


def _listening_near() -> socket.socket:
    """A Unix socket that the kernel names; elsewhere than on Linux one that nobody uses."""
    if not hasattr(os, "memfd_create"):
        return socket.socket()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("")
    listener.listen(128)
    listener.settimeout(PATIENCE)
    return listener


def _listening_far(ip: str) -> socket.socket:
    listener = socket.socket()
    listener.bind((ip, 0))
    listener.listen(128)
    listener.settimeout(PATIENCE)
    return listener


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


def _connected(address: Address, name: tuple[int, int], is_one_host: bool) -> socket.socket:
    rank, lane = name
    peer = socket.socket(socket.AF_UNIX if is_one_host else socket.AF_INET)
    peer.settimeout(PATIENCE)
    place = address.path.encode("latin-1") if is_one_host else (address.ip, address.port)
    try:
        peer.connect(place)
        peer.sendall(address.token.encode() + HELLO.pack(rank, lane))
    except OSError as error:
        raise RankError(
            f"device {rank} cannot reach {address.ip}:{address.port}: {error}"
        ) from error
    if not is_one_host:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


def _accepted(listener: socket.socket, token: str) -> tuple[int, int, socket.socket]:
    """The next rank that knows the token; a stranger is turned away."""
    while True:
        try:
            peer, _ = listener.accept()
        except TimeoutError as error:
            raise RankError(f"not every device came within {PATIENCE:g} s") from error
        peer.settimeout(HELLO_PATIENCE)
        hello = b""
        with suppress(OSError):
            hello = peer.recv(len(token) + HELLO.size, socket.MSG_WAITALL)
        if secrets.compare_digest(hello[: len(token)], token.encode()):
            if peer.family == socket.AF_INET:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            rank, lane = HELLO.unpack(hello[len(token) :])
            return lane, rank, peer
        peer.close()
