"""The mesh: records arrive whole and in order, files too, and an end is reported as what it is."""

from __future__ import annotations

import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from tests.runtime.meshes import meshes
from weft.errors import RankError
from weft.runtime.ranks.mesh import Mesh
from weft.runtime.ranks.peer import Peer
from weft.runtime.ranks.records import FRAME, Record
from weft.runtime.ranks.relay import _RELAYS, listen
from weft.runtime.ranks.sleepers import Sleeper
from weft.runtime.transport.exchange import connected


def received_by(mesh: Mesh) -> list[tuple[int, bytes]]:
    """A list that records are put into as they come."""
    heard: list[tuple[int, bytes]] = []
    mesh.handle(Record.DATA, lambda other, content: heard.append((other, content)))
    return heard


def wait_for(mesh: Mesh, heard: list[tuple[int, bytes]], count: int) -> None:
    mesh.wait(lambda: len(heard) >= count, lambda: f"{count} records")


# records


def test_a_record_may_come_in_pieces() -> None:
    """One byte at a time, and two records with the beginning of a third at once."""
    ours, theirs = socket.socketpair()
    mesh = Mesh(0, {1: ours})
    heard = received_by(mesh)
    frames = [FRAME.pack(Record.DATA, len(text)) + text for text in (b"one", b"", b"three" * 99)]
    for byte in frames[0]:
        assert heard == []
        theirs.send(bytes([byte]))
        mesh.receive(1)
    assert heard == [(1, b"one")]
    theirs.send(frames[0] + frames[1] + frames[2][:7])
    mesh.receive(1)
    assert heard == [(1, b"one"), (1, b"one"), (1, b"")]
    theirs.send(frames[2][7:])
    mesh.receive(1)
    assert heard[3:] == [(1, b"three" * 99)]
    mesh.close()


def test_what_a_socket_does_not_take_at_once_leaves_later_in_order() -> None:
    """More than a socket holds, sent to a rank that does not listen yet."""
    texts = [bytes([index]) * (1 << 16) for index in range(64)]
    with meshes(2) as (one, other), ThreadPoolExecutor() as threads:
        heard = received_by(other)
        for text in texts:
            one.send(1, Record.DATA, text)
        assert heard == []
        listening = threads.submit(wait_for, other, heard, len(texts))
        one.wait(lambda: not one._peers[1].unsent, lambda: "room")
        listening.result()
        assert [content for _, content in heard] == texts


def test_a_gathering_is_over_once_all_has_left() -> None:
    """More than a socket holds: whoever then waits for something else sends nothing meanwhile."""
    share = bytes(1 << 22)
    with meshes(2) as (one, other), ThreadPoolExecutor() as threads:
        gathering = threads.submit(one.gather, share, "all shares")
        assert other.gather(b"", "all shares") == [share, b""]
        gathering.result()
        assert not one._peers[1].unsent


def test_whoever_may_keep_gloo_waiting_is_named() -> None:
    """Gloo does not say which rank does not answer."""
    with meshes(3) as (_, mesh, _):
        mesh.deadline = 0.1
        with pytest.raises(RankError) as caught:
            connected(mesh, lambda _: Event().wait(1))
    assert str(caught.value) == (
        "nothing came within the deadline of 0.1 s; device 1 was waiting for devices 0 and 2 to"
        " connect"
    )


def test_files_are_taken_in_the_order_in_which_they_were_given() -> None:
    """Each with a record that asks to take it, though records may wait for room."""
    with meshes(2) as (one, other), ThreadPoolExecutor() as threads:
        taken: list[os.stat_result] = []
        other.handle(Record.DATA, lambda source, _: taken.append(os.fstat(other.given(source))))
        files = [os.memfd_create(f"test-{index}") for index in range(32)]
        for file in files:
            one.give(1, file)
            one.send(1, Record.DATA, bytes(1 << 16))
        listening = threads.submit(other.wait, lambda: len(taken) == 32, lambda: "all files")
        one.wait(lambda: not one._peers[1].unsent, lambda: "room")
        listening.result()
        assert all(map(os.path.samestat, map(os.fstat, files), taken))
        for file in files:
            os.close(file)


# gathering


def test_gathering_is_in_the_order_of_the_ranks() -> None:
    with meshes(3) as all_of_them, ThreadPoolExecutor() as threads:
        gathered = threads.map(lambda mesh: mesh.gather(b"%d" % mesh.rank, "numbers"), all_of_them)
        assert list(gathered) == [[b"0", b"1", b"2"]] * 3


def test_two_gatherings_do_not_mix() -> None:
    """A rank may be a gathering ahead of another."""
    with meshes(2) as (one, other), ThreadPoolExecutor() as threads:
        ahead = threads.submit(lambda: [one.gather(text, "texts") for text in (b"a", b"b")])
        later = [other.gather(text, "texts") for text in (b"c", b"d")]
        assert ahead.result() == later == [[b"a", b"c"], [b"b", b"d"]]


# ends


def test_who_leaves_is_missed_only_by_those_who_wait_for_it() -> None:
    with meshes(3) as (one, two, three):
        two.close()
        three.send(0, Record.GATHERED, b"share")
        one.wait(lambda: bool(one._shares[2]), lambda: "a share", 2)
        with pytest.raises(RankError, match="device 1 has left; device 0 was waiting for more"):
            one.wait(lambda: False, lambda: "more", 1)


def test_who_leaves_is_heard_by_all_though_its_relay_wakes_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two goodbyes the relay gets its turn: it must leave open what has to take one."""
    with meshes(3) as (one, two, three):
        links, is_asleep_again = two._links, Event()
        listen(links)
        (relay,) = (thread for known, thread in _RELAYS.items() if known is links)
        push, poll = Peer.push, links.sleepers.poll

        def polled(sleeper: Sleeper, seconds: float) -> list[tuple[int, int]]:
            if links.has_left:
                is_asleep_again.set()
            return poll(sleeper, seconds)

        def pushed(peer: Peer, frame: bytes, seconds: float) -> None:
            links.sleepers.wake_all()
            while relay.is_alive() and not is_asleep_again.wait(0.001):
                pass
            push(peer, frame, seconds)

        monkeypatch.setattr(links.sleepers, "poll", polled)
        monkeypatch.setattr(Peer, "push", pushed)
        two.close()
        relay.join()
        for mesh in (one, three):
            mesh.look()
            assert mesh._links.left == {1}


def test_what_was_sent_before_leaving_is_received() -> None:
    with meshes(2) as (one, other):
        heard = received_by(one)
        for _ in range(20):
            other.send(0, Record.DATA, bytes(4000))
        other.close()
        one.wait(lambda: len(heard) == 20, lambda: "all of it", 1)


def test_a_socket_that_ends_without_goodbye_is_a_death_for_all() -> None:
    with meshes(3) as (one, two, three):
        for peer in two._peers.values():
            peer.socket.shutdown(socket.SHUT_RDWR)
        for mesh in (one, three):
            shown = f"device 1 died; device {mesh.rank} was waiting for news"
            with pytest.raises(RankError, match=shown):
                mesh.wait(lambda: False, lambda: "news", 2 - mesh.rank)


def test_a_failure_is_sent_to_all_and_ends_all_later_waits() -> None:
    with meshes(3) as (one, two, three):
        one.fail("out of luck")
        one.fail("again")
        for mesh in (two, three):
            with pytest.raises(RankError, match=re.escape("out of luck; device")):
                mesh.wait(lambda: False, lambda: "news", 0)
        for mesh in (one, two, three):
            with pytest.raises(RankError, match=r"^out of luck$"):
                mesh.check()


def test_what_was_sent_before_a_failure_counts() -> None:
    """By any rank, though the failure is heard of first."""
    with meshes(3) as (one, two, three):
        heard = received_by(one)
        two.send(0, Record.DATA, b"first")
        three.send(0, Record.DATA, b"second")
        three.fail("out of luck")
        one.wait(lambda: heard == [(2, b"second")], lambda: "the second", 2)
        one.wait(lambda: len(heard) == 2, lambda: "the first", 1)
        with pytest.raises(RankError, match="out of luck; device 0 was waiting for a third"):
            one.wait(lambda: len(heard) == 3, lambda: "a third", 1)


def test_what_waited_to_leave_leaves_once_though_this_rank_fails() -> None:
    """Nothing is heard twice, nor from the middle on."""
    texts = [bytes([index]) * (1 << 16) for index in range(8)]
    with meshes(2) as (one, other), ThreadPoolExecutor() as threads:
        heard = received_by(other)
        for text in texts:
            one.send(1, Record.DATA, text)
        listening = threads.submit(wait_for, other, heard, len(texts))
        one.fail("out of luck")
        one.close()
        listening.result()
        with pytest.raises(RankError, match=r"^out of luck$"):
            other.look()
        assert [content for _, content in heard] == texts


def test_a_wait_ends_after_the_deadline() -> None:
    with meshes(2) as (one, _):
        one.deadline = 0.01
        with pytest.raises(RankError, match=r"within the deadline of 0\.01 s; .* for nothing"):
            one.wait(lambda: False, lambda: "nothing", 1)
