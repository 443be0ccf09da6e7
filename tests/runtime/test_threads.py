"""Threads of one rank: each gets what is its own, whichever of them takes it from a socket."""

from __future__ import annotations

import socket
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, Semaphore, Thread
from typing import Any, NamedTuple

import pytest
import torch

from tests.runtime.meshes import meshes
from tests.runtime.ranks import run
from weft.errors import RankError
from weft.ir.kinds import Direction
from weft.runtime.ranks.links import CHUNK
from weft.runtime.ranks.losses import LossReports
from weft.runtime.ranks.members import Members
from weft.runtime.ranks.mesh import Mesh
from weft.runtime.ranks.peer import Peer
from weft.runtime.ranks.records import Record
from weft.runtime.ranks.rendezvous import meet
from weft.runtime.ranks.sleepers import Sleeper
from weft.runtime.ranks.window import Windows
from weft.runtime.stage.cast import Cast
from weft.runtime.transport import Transport
from weft.runtime.transport.grouped import Grouped
from weft.runtime.transport.groups import Gloo
from weft.runtime.transport.message import Fixed, Message, Route, Shapes, TensorShape, Unknown
from weft.runtime.transport.shared import Shared

THREADS = 3
RECORDS = 2000  # of each thread
LARGE = 48  # records of each thread that a socket does not hold
MESSAGES = 1000
RUNS = range(2000)
AHEAD = 4  # messages that a thread sends before it receives
MOST = 2 * (AHEAD + 1)  # of a channel of two threads, so that not both ends wait for room
WAITING = 30.0  # seconds, after which a wait that nobody ends fails its test
SIZES = (0, 1, 300, 5000, CHUNK + 1)  # bytes of a record
EACH = "each thread's own"


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


# the mesh


def text(thread: int, number: int) -> bytes:
    """A record that says whose it is, of a size that changes."""
    return bytes([thread]) + number.to_bytes(4, "big") * (1 + SIZES[number % len(SIZES)] // 4)


def sorted_by_thread(mesh: Mesh) -> list[deque[bytes]]:
    """Queues that records are put into as they come."""
    queues: list[deque[bytes]] = [deque() for _ in range(THREADS)]
    mesh.handle(Record.DATA, lambda _, content: queues[content[0]].append(content))
    return queues


def exchange_records(mesh: Mesh, mine: deque[bytes], thread: int) -> list[bytes]:
    """Send and receive records in turn, a few ahead of the other end."""
    other, found = 1 - mesh.rank, []
    for number in range(RECORDS + AHEAD):
        if number < RECORDS:
            mesh.send(other, Record.DATA, text(thread, number))
        if number >= AHEAD:
            mesh.wait(mine.__len__, lambda: EACH, other)
            found.append(mine.popleft())
    return found


def test_records_of_several_threads_arrive_whole_and_in_order() -> None:
    """In both directions at once; some take several calls to send or to receive."""
    with meshes(2) as both, ThreadPoolExecutor(2 * THREADS) as threads:
        queues = [sorted_by_thread(mesh) for mesh in both]
        work = {
            (mesh.rank, thread): threads.submit(
                exchange_records, mesh, queues[mesh.rank][thread], thread
            )
            for mesh in both
            for thread in range(THREADS)
        }
        for (_, thread), one in work.items():
            assert one.result() == [text(thread, number) for number in range(RECORDS)]


def send_much(mesh: Mesh, thread: int) -> None:
    """More than the socket holds, repeatedly."""
    for number in range(LARGE):
        mesh.send(1, Record.DATA, bytes([thread]) + number.to_bytes(4, "big") * CHUNK)
        if number % AHEAD == AHEAD - 1:
            mesh.wait(lambda: not mesh._peers[1].unsent, lambda: "room", 1)


def test_what_several_threads_send_through_a_full_socket_arrives_whole_and_in_order() -> None:
    with meshes(2) as (one, other), ThreadPoolExecutor(THREADS) as threads:
        found: list[list[bytes]] = [[] for _ in range(THREADS)]
        other.handle(Record.DATA, lambda _, content: found[content[0]].append(content[1:]))
        work = [threads.submit(send_much, one, thread) for thread in range(THREADS)]
        other.wait(
            lambda: all(len(contents) == LARGE for contents in found), lambda: "all of it", 0
        )
        for sending in work:
            sending.result()
        for contents in found:
            assert contents == [number.to_bytes(4, "big") * CHUNK for number in range(LARGE)]


class Halting(socket.socket):
    """A socket that takes five bytes at a time, and lets something happen when it has."""

    meanwhile: Callable[[], None] | None = None

    def send(self, data: Any, *_: int) -> int:
        sent = super().send(bytes(data)[:5])
        act, self.meanwhile = self.meanwhile, None
        if act is not None:
            act()
        return sent


def test_a_record_of_one_thread_does_not_come_amid_that_of_another() -> None:
    """Posted when the socket has taken half of the first."""
    ours, theirs = socket.socketpair()
    with Halting(fileno=ours.detach()) as halting, theirs:
        peer = Peer(halting)
        posting = Thread(target=peer.post, args=(b"second",))

        def post() -> None:
            posting.start()
            posting.join(0.2)  # it cannot end; if it does, the test fails

        halting.meanwhile = post
        assert peer.post(b"first one")
        posting.join()
        while not peer.send_rest():
            pass
        assert theirs.recv(CHUNK) == b"first onesecond"


class Sleep:
    """Stops threads that have looked at everything and are about to sleep."""

    def __init__(self) -> None:
        self._stopped, self._go_on = Semaphore(0), Event()

    def stop(self) -> None:
        """Until what shall happen meanwhile has happened."""
        self._stopped.release()
        assert self._go_on.wait(WAITING)

    @contextmanager
    def before(self, threads: int) -> Iterator[None]:
        """For what shall happen when that many have come."""
        for _ in range(threads):
            assert self._stopped.acquire(timeout=WAITING)
        yield
        self._go_on.set()


@pytest.fixture
def sleep(monkeypatch: pytest.MonkeyPatch) -> Sleep:
    """A stop for all who sleep; they do so for long, so that they are woken or fail their test."""
    found, poll = Sleep(), Sleeper.poll

    def stopped(sleeper: Sleeper, seconds: float) -> list[tuple[int, int]]:
        if not seconds:
            return poll(sleeper, seconds)
        found.stop()
        return poll(sleeper, 2 * WAITING)

    monkeypatch.setattr(Sleeper, "poll", stopped)
    return found


def test_a_thread_is_woken_by_a_record_that_another_took(sleep: Sleep) -> None:
    """Which comes when it has just seen that nothing is there."""
    with meshes(2) as (one, other), ThreadPoolExecutor() as threads:
        taken: list[bytes] = []
        one.handle(Record.DATA, lambda _, content: taken.append(content))
        waiting = threads.submit(one.wait, taken.__len__, lambda: "news", 1)
        with sleep.before(1):
            other.send(0, Record.DATA, b"news")
            while not taken:
                one.receive(1)
        waiting.result(WAITING)


def test_a_thread_that_sleeps_sends_what_another_could_not(sleep: Sleep) -> None:
    """More than the socket holds, posted when it has just seen that nothing is left to send."""
    with meshes(2) as (one, other), ThreadPoolExecutor() as threads:
        asked: list[bytes] = []
        answered: list[bytes] = []
        one.handle(Record.DATA, lambda _, content: answered.append(content))
        other.handle(Record.DATA, lambda _, content: asked.append(content))
        waiting = threads.submit(one.wait, answered.__len__, lambda: "an answer", 1)
        with sleep.before(1):
            one.send(1, Record.DATA, bytes(64 * CHUNK))
            assert one._peers[1].unsent
        other.wait(asked.__len__, lambda: "the question", 0)
        other.send(0, Record.DATA, b"answer")
        waiting.result(WAITING)


class Ending(NamedTuple):
    """How waits are ended, and what they say then."""

    act: Callable[[Mesh, Mesh], None]
    says: str


def die(one: Mesh, other: Mesh) -> None:
    """The other rank ends without goodbye, which another thread of this one notices."""
    other._peers[0].socket.shutdown(socket.SHUT_RDWR)
    one.receive(1)


def leave(one: Mesh, other: Mesh) -> None:
    other.send(0, Record.LEFT)
    one.receive(1)


def fail_there(one: Mesh, other: Mesh) -> None:
    other.fail("out of luck")
    one.receive(1)


ENDINGS = {
    "a failure here": Ending(lambda one, _: one.fail("out of luck"), "out of luck"),
    "a failure there": Ending(fail_there, "out of luck"),
    "a death": Ending(die, "device 1 died"),
    "a rank that leaves": Ending(leave, "device 1 has left"),
    "the end of the mesh": Ending(lambda one, _: one.close(), "this pipeline is closed"),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_an_end_that_one_thread_sees_ends_the_waits_of_all(name: str, sleep: Sleep) -> None:
    """Though they have just seen that there is none."""
    with meshes(2) as (one, other), ThreadPoolExecutor() as threads:
        waiting = [threads.submit(one.wait, lambda: False, lambda: EACH, 1) for _ in range(THREADS)]
        with sleep.before(THREADS):
            ENDINGS[name].act(one, other)
        for wait in waiting:
            says = f"{ENDINGS[name].says}.*; device 0 was waiting for {EACH}"
            with pytest.raises(RankError, match=says):
                wait.result(WAITING)


# losses


def test_a_thread_may_report_while_another_receives() -> None:
    """Whichever of the two enters the last loss, the run is known and forgotten once."""
    with meshes(2) as (one, other), ThreadPoolExecutor() as threads:
        reports = [LossReports(mesh, (0, 1)) for mesh in (one, other)]

        def report(rank: int) -> None:
            for run in RUNS:
                reports[rank].report(run, {rank: torch.tensor(rank / 8)})
            mesh = (one, other)[rank]
            mesh.wait(lambda: not mesh._peers[1 - rank].unsent, lambda: "room", 1 - rank)

        opened = [[reading.open(run, 2) for run in RUNS] for reading in reports]
        last = [runs[-1].reporters for runs in opened]
        receiving = [
            threads.submit(mesh.wait, last[mesh.rank].__len__, lambda: "the last", 1 - mesh.rank)
            for mesh in (one, other)
        ]
        for work in [threads.submit(report, rank) for rank in range(2)]:
            work.result()
        for work in receiving:
            work.result()
        for rank in range(2):
            assert [reports[rank].wait(run) for run in opened[rank]] == [[0.0, 0.125]] * len(RUNS)
            assert reports[rank]._runs == {}


# transports


class Line(NamedTuple):
    """What a thread sends and receives: the messages of an edge and a direction."""

    edge: int
    direction: Direction
    shapes: Shapes


LINES = (
    Line(0, Direction.ACTIVATION, Fixed((TensorShape((100,), torch.float32),))),
    Line(1, Direction.ACTIVATION, Fixed((TensorShape((100,), torch.float32),))),
    Line(0, Direction.GRADIENT, Fixed((TensorShape((100,), torch.float32),))),
    Line(0, Direction.BOTH, Unknown()),
)


def route(line: Line, source: int, number: int) -> Route:
    message = Message(line.edge, line.direction, number)
    return Route(message, source, 1 - source, f"{line.edge}F{number}", number)


def size(line: Line, number: int) -> int:
    """Of a message; where it is not known before, it changes."""
    return 100 if line.shapes() else 1 + number % 7 * 1000


def exchange(transport: Transport, rank: int, line: Line, count: int) -> list[tuple[int, ...]]:
    """Send and receive in turn, a few ahead of the other end: sizes and values that arrive."""
    found = []
    for number in range(count + AHEAD):
        if number < count:
            value = torch.full((size(line, number),), float(number))
            transport.sender(route(line, rank, number), line.shapes)([value])
        if number >= AHEAD:
            (value,) = transport.receiver(route(line, 1 - rank, number - AHEAD), line.shapes)()
            found.append((len(value), *map(int, value.unique())))
    return found


def in_threads(transport: Transport, rank: int, count: int) -> list[list[tuple[int, ...]]]:
    """All lines at once, each in a thread."""
    with ThreadPoolExecutor(len(LINES)) as threads:
        work = [threads.submit(exchange, transport, rank, line, count) for line in LINES]
        return [one.result() for one in work]


def wanted(count: int) -> list[list[tuple[int, ...]]]:
    return [[(size(line, number), number) for number in range(count)] for line in LINES]


def windows(most: int) -> Windows:
    return defaultdict(lambda: most)


def test_threads_share_blocks_and_nothing_is_lost() -> None:
    with meshes(2) as (one, other), ThreadPoolExecutor(2) as threads:
        both = [Shared(mesh, windows(AHEAD)) for mesh in (one, other)]
        work = [threads.submit(in_threads, both[rank], rank, MESSAGES) for rank in range(2)]
        for found in work:
            assert found.result() == wanted(MESSAGES)
        for shared in both:
            free = sum(len(found) for rooms in shared._free.values() for found in rooms.values())
            used = sum(map(len, shared._used.values()))
            assert free + used == shared._blocks


def grouped() -> tuple[Mesh, Grouped]:
    mesh = meet(Members.all(), WAITING).mesh
    return mesh, Grouped(mesh, Gloo(mesh), numbers=MESSAGES, windows=windows(MOST))


def over_gloo(count: int) -> bool:
    """In a rank: whether everything arrives, with receives that are posted ahead."""
    mesh, transport = grouped()
    known = [line for line in LINES if line.shapes()]
    incoming, outgoing = (
        [route(line, source, number) for number in range(count) for line in known]
        for source in (1 - mesh.rank, mesh.rank)
    )
    for line in known:
        for number in range(count):
            transport.receiver(route(line, 1 - mesh.rank, number), line.shapes)
            transport.sender(route(line, mesh.rank, number), line.shapes)
    transport.begin(incoming, outgoing)
    found = in_threads(transport, mesh.rank, count)
    transport.end()
    mesh.gather(b"", "the end")
    transport.close()
    mesh.close()
    return found == wanted(count)


def test_threads_share_channels_of_a_process_group() -> None:
    assert run(2, over_gloo, 300) == [True, True]


def failing_over_gloo() -> list[str]:
    """In a rank: how receives in several threads end when rank 1 gives up."""
    mesh, transport = grouped()
    lines = [line for line in LINES if line.direction is not Direction.ACTIVATION or not line.edge]
    receives = [transport.receiver(route(line, 1 - mesh.rank, 0), line.shapes) for line in lines]
    for line in lines:
        transport.sender(route(line, mesh.rank, 0), line.shapes)
    known = [line for line in lines if line.shapes()]
    transport.begin(
        [route(line, 1 - mesh.rank, 0) for line in known],
        [route(line, mesh.rank, 0) for line in known],
    )
    mesh.gather(b"", "the start")
    with ThreadPoolExecutor(len(lines)) as threads:
        waiting = [threads.submit(receive) for receive in receives]
        if mesh.rank:
            mesh.fail("out of luck")
        else:
            with pytest.raises(RankError):
                mesh.wait(lambda: False, lambda: "news", 1)
        transport.abandon()
        ends = [how(one) for one in waiting]
    mesh.close()
    return ends


def how(work: Future[Any]) -> str:
    try:
        work.result()
    except RankError as error:
        return str(error)
    return "it did not fail"


def test_a_failure_ends_the_receives_of_all_threads_over_a_process_group() -> None:
    """Of the rank that fails, too, whose threads wait for what others never send."""
    for rank, ends in enumerate(run(2, failing_over_gloo)):
        assert len(ends) == 3
        for said in ends:
            assert said.startswith(f"out of luck; device {rank} was waiting for 0F0 of device")


# autocast


def test_no_thread_drops_what_another_has_cast() -> None:
    """A weight that is used twice is cast once, and the gradients of both are summed before."""
    weight, value = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16), ThreadPoolExecutor(1) as thread:
        cast = Cast.here(weight.device)
        first = value @ weight
        assert thread.submit(multiplied, cast, value).result() == torch.bfloat16
        second = value @ weight
    assert cast_in(first).name() == "ToCopyBackward0"
    assert cast_in(first) is cast_in(second)


def cast_in(product: torch.Tensor) -> Any:
    node: Any = product.grad_fn
    (found,) = (before for before, _ in node.next_functions if before is not None)
    return found


def multiplied(cast: Cast, value: torch.Tensor) -> torch.dtype:
    with cast.beside():
        with torch.autocast("cpu", torch.bfloat16):
            pass
        return (value @ value).dtype
