"""NCCL, as far as it can be tested without a GPU: groups, failures, and how a process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import weakref
from threading import Event, Timer
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.runtime.meshes import meshes
from tests.runtime.models import linear, squared
from tests.runtime.ranks import run
from weft.errors import RankError, WeftError
from weft.ir.kinds import Direction
from weft.runtime import Pipeline
from weft.runtime.ranks.world import Ranks
from weft.runtime.transport import collectives
from weft.runtime.transport import communicators as made
from weft.runtime.transport.message import (
    Fixed,
    Layout,
    Message,
    Route,
    TensorShape,
    Unknown,
    Values,
)
from weft.runtime.transport.nccl import Nccl, TransferGroup
from weft.runtime.transport.under_way import UnderWay
from weft.schedules import one_f_one_b

CPU = torch.device("cpu")
LONG = 30.0  # seconds after which a test has failed


class Communicator:
    """What a process group of NCCL does with groups: notes what was launched together."""

    def __init__(self) -> None:
        self.launched: list[list[tuple[str, int]]] = []
        self.error: str | None = None
        self.is_idle = True

    def _start_coalescing(self, device: torch.device) -> None:
        if self.error is not None:
            raise RuntimeError(self.error)
        self.launched.append([])

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> None:
        self.launched[-1].append(("send", peer))

    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> None:
        self.launched[-1].append(("receive", peer))
        tensors[0].fill_(7.0)

    def _end_coalescing(self, device: torch.device) -> Any:
        return Work(self)


class Work:
    """What was launched, over when the test says so."""

    def __init__(self, communicator: Communicator | Summing) -> None:
        self._communicator = communicator

    def wait(self) -> None: ...

    def is_completed(self) -> bool:
        return self._communicator.is_idle


class Communicators:
    def __init__(self) -> None:
        self.wires, self.sums = Communicator(), Communicator()
        self.is_aborted = Event()

    def abort(self) -> None:
        self.is_aborted.set()

    def close(self) -> None: ...


class Streamless:
    """Stands for an accelerator: `record_stream` of a tensor on the CPU takes any stream."""

    entered: Any = None


@pytest.fixture(autouse=True)
def no_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "record_stream", lambda self, stream: None)


def nccl(mesh: Any) -> tuple[Nccl, Communicators]:
    both = Communicators()
    return Nccl(mesh, both, CPU, Streamless()), both  # type: ignore[arg-type]


def route(microbatch: int, direction: Direction, source: int = 0) -> Route:
    return Route(Message(0, direction, microbatch), source, 1 - source, "0F0", microbatch)


def layout(*sizes: int) -> Layout:
    return (TensorShape(sizes, torch.float32),)


def test_transfers_of_a_group_are_launched_together_by_the_last() -> None:
    with meshes(2) as (one, _):
        transport, both = nccl(one)
        transport.is_first = False
        send = transport.sender(route(0, Direction.ACTIVATION), Fixed(layout(2)))
        post = transport.poster(route(1, Direction.ACTIVATION, 1), Fixed(layout(2)))
        send([torch.zeros(2)])
        transport.post(False)
        post()
        transport.post(True)
        assert both.wires.launched == [[("send", 1), ("receive", 1)]]
        transport.close()


def test_in_a_first_run_each_is_launched_by_itself() -> None:
    """CUDA may drain the device between two of them, to load a kernel."""
    with meshes(2) as (one, _):
        transport, both = nccl(one)
        send = transport.sender(route(0, Direction.ACTIVATION), Fixed(layout(2)))
        for is_last in (False, True):
            send([torch.zeros(2)])
            transport.post(is_last)
        assert both.wires.launched == [[("send", 1)], [("send", 1)]]
        transport.close()


def test_what_was_posted_is_what_its_reader_gets() -> None:
    with meshes(2) as (one, _):
        transport, _both = nccl(one)
        come = route(0, Direction.ACTIVATION, 1)
        transport.poster(come, Fixed(layout(2)))()
        transport.post(True)
        (value,) = transport.receiver(come, Fixed(layout(2)))()
        assert torch.equal(value, torch.full((2,), 7.0))
        transport.close()


def test_a_gradient_that_nothing_computed_is_none_at_its_reader() -> None:
    with meshes(2) as (one, other):
        sending, _a = nccl(one)
        receiving, _b = nccl(other)
        there = route(0, Direction.GRADIENT)
        shapes = Fixed(layout(2))
        sending.sender(there, shapes)([None])
        receiving.poster(there, shapes)()
        receiving.post(True)
        assert receiving.receiver(there, shapes)() == [None]
        sending.close()
        receiving.close()


class Seen:
    """Shapes that are known once they were seen."""

    is_agreed = True

    def __init__(self) -> None:
        self.layout: Layout | None = None

    def __call__(self) -> Layout | None:
        return self.layout

    def learn(self, layout: Layout | None) -> None:
        """Nobody knows more."""

    def see(self, layout: Layout) -> None:
        self.layout = layout


def test_a_header_is_read_once_also_where_shapes_become_known_by_it() -> None:
    with meshes(2) as (one, other):
        other.deadline = LONG
        sending, _a = nccl(one)
        receiving, _b = nccl(other)
        there = route(0, Direction.GRADIENT)
        for _ in range(2):
            sending.sender(there, Unknown())([torch.zeros(2)])
        come, take = Seen(), route(0, Direction.GRADIENT)
        post, receive = receiving.poster(take, come), receiving.receiver(take, come)
        for _ in range(2):
            post()
            receiving.post(True)
            (value,) = receive()
            assert torch.equal(value, torch.full((2,), 7.0))
        sending.close()
        receiving.close()


def test_what_is_sent_is_kept_until_the_transfer_is_over() -> None:
    """NCCL copies it later, on a stream of its own."""
    with meshes(2) as (one, _):
        transport, both = nccl(one)
        send = transport.sender(route(0, Direction.ACTIVATION), Fixed(layout(2)))
        both.wires.is_idle = False
        value = torch.zeros(2)
        memory = weakref.ref(value)
        send([value])
        transport.post(True)
        del value
        assert memory() is not None
        both.wires.is_idle = True
        send([torch.zeros(2)])
        transport.post(True)
        assert memory() is None
        transport.close()


def test_sums_take_a_communicator_of_their_own_and_go_both_ways_at_once() -> None:
    """Neither rank's send may wait for what the other launches after its own."""
    with meshes(2) as (one, other):
        transport, both = nccl(one)
        far, _ = nccl(other)
        there, back = route(0, Direction.BOTH), route(1, Direction.BOTH, source=1)
        meet = transport.meeting([there], [back])
        transport.sender(there, Unknown())([torch.zeros(3)])
        far.sender(back, Unknown())([torch.zeros(3)])
        assert (both.wires.launched, both.sums.launched) == ([], [])
        ((found,),) = meet()
        assert (both.wires.launched, both.sums.launched) == ([], [[("send", 1), ("receive", 1)]])
        assert torch.equal(found, torch.full((3,), 7.0))
        transport.close()
        far.close()


def test_values_that_change_are_refused() -> None:
    with meshes(2) as (one, _):
        transport, _both = nccl(one)
        values: Values = [torch.zeros(3)]
        with pytest.raises(WeftError, match="which process groups and NCCL cannot carry"):
            transport.sender(route(0, Direction.ACTIVATION), Fixed(layout(2)))(values)
        transport.close()


# failures


def test_whoever_fails_is_named_not_the_communicator_that_was_aborted_for_it() -> None:
    with meshes(2) as (one, other):
        transport, both = nccl(one)
        other.fail("device 1 failed at 1F0: out of luck")
        assert both.is_aborted.wait(LONG), "the guard ends what waits for a rank that has failed"
        both.wires.error = "NCCL communicator was aborted"
        transport.sender(route(0, Direction.ACTIVATION), Fixed(layout(2)))([torch.zeros(2)])
        with pytest.raises(RankError, match="device 1 failed at 1F0: out of luck"):
            transport.post(True)
        transport.close()


def test_a_rank_that_died_is_named_where_nccl_has_noticed_first() -> None:
    with meshes(2) as (one, other):
        transport, both = nccl(one)
        both.wires.error = "ncclRemoteError"
        transport.sender(route(0, Direction.ACTIVATION), Fixed(layout(2)))([torch.zeros(2)])
        Timer(0.2, other.fail, ("device 1 died",)).start()
        with pytest.raises(RankError, match="device 1 died"):
            transport.post(True)
        transport.close()


def test_an_error_that_nobody_else_has_caused_is_passed_on() -> None:
    with meshes(2) as (one, _):
        transport, both = nccl(one)
        both.wires.error = "no memory"
        transport.sender(route(0, Direction.ACTIVATION), Fixed(layout(2)))([torch.zeros(2)])
        with pytest.raises(RuntimeError, match="no memory"):
            transport.post(True)
        transport.close()


def waiting_for_a_stalled_rank(transport: Nccl, both: Communicators) -> None:
    """A receive that the GPU never gets past, while the host goes on launching."""
    transport.is_first = both.wires.is_idle = False
    come = route(0, Direction.ACTIVATION, 1)
    transport.poster(come, Fixed(layout(2)))()
    transport.post(True)


def test_a_transfer_beyond_the_deadline_is_ended_whatever_its_host_does() -> None:
    """The host may be in a launch, which waits for as long as the GPU does."""
    with meshes(2) as (one, other):
        transport, both = nccl(one)
        one.deadline = 0.2
        transport.under_way.is_running = True
        waiting_for_a_stalled_rank(transport, both)
        assert both.is_aborted.wait(LONG)
        reason = "deadline of 0.2 s; device 0 was waiting for a transfer with device 1 on its GPU"
        for mesh in (one, other):
            with pytest.raises(RankError, match=reason):
                mesh.wait(lambda: False, lambda: "news", 1 - mesh.rank)
        transport.close()


class Summing:
    """A process group of NCCL whose sums are never over."""

    def __init__(self) -> None:
        self.is_idle, self.is_aborted = False, Event()

    def allreduce(self, tensors: list[Tensor]) -> Any:
        return Work(self)

    def abort(self) -> None:
        self.is_aborted.set()

    def shutdown(self) -> None: ...


def test_a_sum_beyond_the_deadline_is_ended_whatever_its_host_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Summing()
    monkeypatch.setattr(collectives, "connected_sums", lambda *_: {(0, 1): group})
    monkeypatch.setattr("atexit.register", lambda _: None)
    with meshes(2) as (one, other):
        one.deadline = 0.2
        sums = collectives.NcclCollectives(one, CPU, [(0, 1)])
        sums.under_way.is_running = True
        sums.by_devices[0, 1].summed(torch.zeros(2))
        assert group.is_aborted.wait(LONG)
        reason = "device 0 was waiting for a sum of gradients with device 1 on its GPU"
        with pytest.raises(RankError, match=reason):
            other.wait(lambda: False, lambda: "news", 0)
        sums.close()


def test_what_is_under_way_is_late_only_within_a_run() -> None:
    with meshes(2) as (one, _):
        transport, _both = nccl(one)
        world = Ranks.__new__(Ranks)
        world.transport, world._first, world._under_way = transport, "", [transport.under_way]
        world._mesh = world._whole = one
        world.begin(LONG)
        within = transport.under_way.is_running
        world.end()
        assert (within, transport.under_way.is_running) == (True, False)
        transport.close()


def test_between_two_runs_nobody_has_to_come() -> None:
    with meshes(2) as (one, _):
        transport, both = nccl(one)
        one.deadline = 0.0
        waiting_for_a_stalled_rank(transport, both)
        assert not both.is_aborted.wait(3 * made.PAUSE)
        transport.close()


class Group:
    def __init__(self) -> None:
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def test_what_was_begun_is_aborted_where_ranks_do_not_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel of it may wait for a rank that is gone."""
    groups, ends, forever = list[Group](), list[object](), Event()

    def begun(*_: object) -> Group:
        groups.append(Group())
        return groups[-1]

    for name, what in {"_store": None, "PrefixStore": None, "_group": begun}.items():
        monkeypatch.setattr(made, name, what or (lambda *_: None))
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr("atexit.register", ends.append)
    monkeypatch.setattr(made.Communicators, "_connect", lambda *_: forever.wait(LONG))
    with meshes(2) as (one, other):
        Timer(0.2, other.fail, ("device 1 failed: no memory",)).start()
        with pytest.raises(RankError, match="device 1 failed: no memory"):
            made.Communicators(one, CPU, [(0, 1)])
    forever.set()
    assert [group.is_aborted for group in groups] == [True]
    assert made._end_soon in ends


def test_numbers_that_nccl_does_not_know_travel_as_bytes() -> None:
    group = TransferGroup()
    for dtype in (torch.int16, torch.uint32, torch.complex64, torch.bfloat16):
        group.add(torch.zeros((), dtype=dtype), 1, is_send=True)
    sent = [(tensor.dtype, tensor.numel()) for _, tensor, _ in group._ops]
    assert sent == [(torch.uint8, 2), (torch.uint8, 4), (torch.float32, 2), (torch.bfloat16, 1)]


def test_a_guard_ends_with_its_pipeline() -> None:
    with meshes(2) as (one, _):
        both = Communicators()
        guard = made.Guard(one, both, UnderWay("a transfer"))
        guard.close()
        assert weakref.ref(both)() is both
        assert not both.is_aborted.is_set()


STUCK = """
import atexit, os, time
from weft.runtime.transport import communicators
atexit.register(lambda: time.sleep(3600))  # as a destructor that waits for a device
communicators.GRACE = 1
atexit.register(communicators._end_soon)
raise SystemExit("the reason")
"""


def test_a_process_that_has_aborted_ends_whatever_waits_on_its_way_out() -> None:
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(
        [sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=120, env=given,
        check=False,
    )  # fmt: skip
    assert "the reason" in found.stderr
    assert found.returncode == -signal.SIGALRM


def test_the_environment_is_as_before_once_a_communicator_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, other = made.WATCHDOG
    monkeypatch.setenv(name, "3")
    monkeypatch.delenv(other, raising=False)
    with made._without_watchdog():
        assert [os.environ[one] for one in made.WATCHDOG] == ["0", "0"]
    assert os.environ[name] == "3"
    assert other not in os.environ


def test_an_empty_group_launches_nothing() -> None:
    communicator = Communicator()
    group = TransferGroup()
    group.launch(communicator, CPU)
    group.wait()
    assert communicator.launched == []


def test_a_wait_for_its_own_device_names_whom_that_waits_for() -> None:
    with meshes(2) as (one, _):
        transport, both = nccl(one)
        send = transport.sender(route(0, Direction.ACTIVATION), Fixed(layout(2)))
        both.wires.is_idle = False
        send([torch.zeros(2)])
        transport.post(True)
        world = Ranks.__new__(Ranks)
        world._mesh, world._under_way, one.deadline = one, [transport.under_way], 0.0
        reason = "waiting for a loss; its GPU waits for a transfer with device 1"
        with pytest.raises(RankError, match=reason):
            world._look(0.0, "a loss")
        both.wires.is_idle = True
        with pytest.raises(RankError, match=r"waiting for a loss$"):
            world._look(0.0, "a loss")
        transport.close()


def known_to_each(transport: Any) -> list[list[bool]]:
    """In each rank: whether two stores know what a rank has put into the first of them."""
    program = one_f_one_b(devices=2, microbatches=2)
    found = []
    with Pipeline(linear(2), program, loss=squared, transport=transport) as pipeline:
        mesh: Any = pipeline._world._mesh  # type: ignore[attr-defined]
        stores = [made._store(mesh, "a store") for _ in range(2)]
        if mesh.rank == 0:
            stores[0].set("address", "where")
        mesh.gather(b"", "what was put")
        found.append([store.check(["address"]) for store in stores])
        mesh.gather(b"", "what was found")  # before the store is gone
    return found


def test_a_later_communicator_does_not_find_the_addresses_of_an_earlier_one() -> None:
    assert run(2, known_to_each, "shared") == [[[True, False]]] * 2
