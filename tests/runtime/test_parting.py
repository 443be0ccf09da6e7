"""Ranks part in good order: also those that end without a word, before their devices are done."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from tests.runtime.fake_device import FakeDevice
from weft.errors import RankError
from weft.runtime.ranks.parting import closed_with
from weft.runtime.ranks.records import Record
from weft.runtime.transport.blocks import Block
from weft.runtime.transport.peer import Events, PeerMemory
from weft.runtime.transport.under_way import UnderWay

CPU = torch.device("cpu")
LONG = 60

END = """
import atexit, os, sys
from weft.runtime.ranks.parting import closed_with

class World:
    def close(self):
        print("closed")

class Owner: ...

owner = Owner()
atexit.register(print, "torch goes")
parting = closed_with(owner, World())
if "child" in sys.argv:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        parting.detach()
if "dropped" in sys.argv:
    del owner
    print("goes on")
if "fails" in sys.argv:
    raise SystemExit(3)
"""


class World:
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class Owner: ...


def said(*words: str) -> list[str]:
    """What a process prints that ends without closing what it has."""
    command = [sys.executable, "-u", "-c", END, *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LONG)
    assert not ended.stderr
    return ended.stdout.splitlines()


def test_a_world_closes_with_its_owner() -> None:
    world, owner = World(), Owner()
    closed_with(owner, world)  # type: ignore[arg-type]
    gc.collect()
    assert world.closed == 0
    del owner
    gc.collect()
    assert world.closed == 1


def test_whoever_closes_it_does_so_alone() -> None:
    world, owner = World(), Owner()
    closed_with(owner, world).detach()  # type: ignore[arg-type]
    del owner
    gc.collect()
    assert world.closed == 0


def test_its_end_is_no_reason_to_keep_an_owner() -> None:
    owner = Owner()
    seen = weakref.ref(owner)
    closed_with(owner, World())  # type: ignore[arg-type]
    del owner
    gc.collect()
    assert seen() is None


def test_a_process_that_ends_closes_first() -> None:
    assert said() == ["closed", "torch goes"]
    assert said("fails") == ["closed", "torch goes"]
    assert said("dropped") == ["closed", "goes on", "torch goes"]


def test_a_child_of_it_closes_nothing() -> None:
    assert said("child") == ["torch goes", "torch goes"]


# devices are later than their hosts


class Mesh:
    """Runs a device while its host waits, one launch at a time, and notes what happens when."""

    deadline: float | None = LONG

    def __init__(self, proceed: Callable[[], object]) -> None:
        self._proceed, self.story = proceed, list[str]()
        self._handlers: dict[Record, Any] = {}

    def handle(self, record: Record, handler: Any) -> None:
        self._handlers[record] = handler

    def send(self, other: int, record: Record) -> None:
        self.story.append(f"{record.name} to {other}")

    def let_go(self, other: int) -> None:
        self.story.append(f"PARTED from {other}")
        self._handlers[Record.PARTED](other, b"")

    def wait(self, is_done: Callable[[], bool], what: Callable[[], str], *sources: int) -> None:
        self.wait_for_device(is_done, what, *sources)

    def wait_for_device(
        self, is_done: Callable[[], bool], what: Callable[[], str], *sources: int
    ) -> None:
        while not is_done():
            assert isinstance(what(), str)
            self._proceed()


class Copy:
    """A copy on a device, which is done after some looks at it."""

    def __init__(self, looks: int) -> None:
        self.left = looks

    def query(self) -> bool:
        return self.left == 0


def memory_of(mesh: Any) -> PeerMemory:
    return PeerMemory(mesh, CPU, FakeDevice())


def block_of(emptied: Copy) -> Block:
    events: Any = (Copy(0), emptied)
    return Block(0, torch.empty(8), Events(*events))


def test_a_gpus_memory_stays_until_all_is_read() -> None:
    """First what this device has read itself, then what others read, then that they let go."""
    own, theirs, unread = Copy(2), Copy(2), {1: 2}

    def proceed() -> None:
        if own.left:
            own.left -= 1
        elif unread[1]:
            mesh.story.append("unread")
            unread[1] -= 1
        elif theirs.left:
            mesh.story.append("being read")
            theirs.left -= 1
        else:
            mesh.let_go(1)

    mesh = Mesh(proceed)
    memory: Any = memory_of(mesh)
    memory._copied_out = own
    memory.part(mesh, [0], {1: [block_of(theirs)]}, lambda receiver: unread[receiver] > 0)
    reading = ["unread"] * 2 + ["being read"] * 2
    assert mesh.story == ["PARTED to 0", *reading, "PARTED from 1"]


def test_a_receiver_that_has_parted_reads_nothing_more() -> None:
    mesh = Mesh(lambda: mesh.let_go(1))
    memory_of(mesh).part(mesh, [], {1: [block_of(Copy(1))]}, lambda _: True)  # type: ignore[arg-type]
    assert mesh.story == ["PARTED from 1"]


def test_nobody_waits_for_a_rank_that_has_failed() -> None:
    def fail() -> None:
        raise RankError("device 1 died")

    mesh = Mesh(fail)
    memory: Any = memory_of(mesh)
    memory._copied_out = Copy(1)
    memory.part(mesh, [0], {1: [block_of(Copy(1))]}, lambda _: True)
    assert mesh.story == ["PARTED to 0"]
    assert mesh.deadline == LONG


class Transfer:
    """A transfer that is over after some looks."""

    peers = frozenset({1})

    def __init__(self, looks: int) -> None:
        self.looks = looks

    @property
    def is_over(self) -> bool:
        return self.looks == 0


def under_way(*transfers: Transfer) -> UnderWay:
    found = UnderWay("a transfer")
    for one in transfers:
        found.add(one)
    return found


def test_what_was_launched_is_over_before_its_communicator_goes() -> None:
    transfers, waits = [Transfer(2), Transfer(3)], list[int]()

    def proceed() -> None:
        waits.append(1)
        for one in transfers:
            one.looks = max(0, one.looks - 1)

    under_way(*transfers).finish(Mesh(proceed))  # type: ignore[arg-type]
    assert len(waits) == 3


def test_but_not_where_a_rank_has_failed() -> None:
    def fail() -> None:
        raise RankError("device 1 died")

    found = under_way(Transfer(1))
    found.finish(Mesh(fail))  # type: ignore[arg-type]
    assert found.oldest() is None
