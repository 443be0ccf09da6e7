"""The transports of GPUs between ranks of CPUs, as far as their order goes.

    a host     launches groups, and goes on; where a stream would wait for one, it waits itself
    a queue    of NCCL, one for each communicator: one group after the other, as launched
    a group    is over when all that it sends has been received, and all that it receives is there

Hosts that wait are slower than streams: what ends here ends on GPUs, in whatever order these go on.
What NCCL sends is read while the host goes on, so that whoever writes over it is found out. What
`peer` sends is read when its reader gets to it.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, partialmethod
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, TypeAlias
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from weft.ir.kinds import Direction
from weft.runtime import assembly
from weft.runtime.lane import lanes
from weft.runtime.profile import hops
from weft.runtime.ranks import carriers, rendezvous, world
from weft.runtime.ranks.mesh import Mesh
from weft.runtime.transport.groups import Gloo, Group
from weft.runtime.transport.host import HostMemory
from weft.runtime.transport.nccl import Nccl, TransferGroup
from weft.runtime.transport.shared import Shared
from weft.runtime.weights import summing

HEADER = struct.Struct("<q16s")  # bytes and type of what is sent
SLOWNESS = 1e-3  # seconds for which a group may be late
LATER = 0.3  # of all changes of stream, in later runs: how often all that was launched ends
KINDS = 3  # of messages between two ranks: a header, what is sent, that it was received

Op: TypeAlias = tuple[bool, Tensor, int]  # whether it sends, what, and to or from whom


class Launched:
    """A group in the queue; whoever waits for it learns why it will never be over."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.ops, self._is_over = ops, Event()
        self._error = ""

    def end(self, error: str = "") -> None:
        self._error = error
        self._is_over.set()

    def drain(self) -> None:
        """A device goes on also where a communicator was aborted."""
        self._is_over.wait()

    def wait(self) -> None:
        self.drain()
        if self._error:
            raise RuntimeError(self._error)

    def is_completed(self) -> bool:
        return self._is_over.is_set()


class Communicator:
    """Launches groups one after the other, on a thread that stands for NCCL's own stream."""

    def __init__(self, group_to: Callable[[int], Group], seed: int) -> None:
        self._group_to, self._chance = group_to, random.Random(seed)
        self._counts: dict[tuple[bool, int], int] = {}
        self._ops: list[Op] = []
        self._queue = SimpleQueue[Launched | None]()
        self._is_aborted = False
        Thread(target=self._run, daemon=True).start()

    def _start_coalescing(self, device: torch.device) -> None:
        if self._is_aborted:
            raise RuntimeError("the communicator was aborted")
        self._ops = []

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> None:
        self._ops.append((True, tensors[0], peer))

    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> None:
        self._ops.append((False, tensors[0], peer))

    def _end_coalescing(self, device: torch.device) -> Launched:
        launched = Launched(self._ops)
        self._queue.put(launched)
        return launched

    def abort(self) -> None:
        """Nothing that is left will be over; what is under way ends with its connections."""
        self._is_aborted = True

    def close(self) -> None:
        self._queue.put(None)

    def _run(self) -> None:
        while (launched := self._queue.get()) is not None:
            error = "the communicator was aborted" if self._is_aborted else ""
            try:
                if not error:
                    self._exchange(launched.ops)
            except RuntimeError as failure:
                error = str(failure)
            launched.end(error)

    def _exchange(self, ops: Sequence[Op]) -> None:
        """All of a group at once; what is sent is over when it was received."""
        time.sleep(self._chance.random() * SLOWNESS)
        ends = [End(self._group_to(one[2]), one, self._next(*one[::2])) for one in ops]
        for does in (End.describe, End.move, End.finish, End.answer):
            works = [work for end in ends for work in does(end)]
            for work in works:
                work.wait()

    def _next(self, is_send: bool, peer: int) -> int:
        """The number of a message between two ranks."""
        self._counts[is_send, peer] = number = self._counts.get((is_send, peer), 0) + 1
        return number


class End:
    """One of the two ends of a transfer: a header goes before it, and an answer comes back."""

    def __init__(self, group: Group, op: Op, number: int) -> None:
        self._group, self._first = group, KINDS * number
        self._is_send, tensor, self._peer = op
        assert tensor.is_contiguous()
        self._content = tensor.detach().reshape(-1).view(torch.uint8)
        own = HEADER.pack(tensor.nbytes, str(tensor.dtype)[-16:].encode())
        self._own = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        self._header, self._answer = torch.empty_like(self._own), torch.zeros(1)

    def describe(self) -> Iterator[Any]:
        """What is waited for before the next part; what is sent is begun at once."""
        if self._is_send:
            self._sent = [self._send(self._own, 0)]
            if self._content.numel():
                self._sent.append(self._send(self._content, 1))
        else:
            yield self._receive(self._header, 0)

    def move(self) -> Iterator[Any]:
        if not self._is_send:
            if not torch.equal(self._header, self._own):
                found, expected = (HEADER.unpack(bytes(one)) for one in (self._header, self._own))
                raise RuntimeError(f"{found} came from device {self._peer}, not {expected}")
            if self._content.numel():
                yield self._receive(self._content, 1)

    def finish(self) -> Iterator[Any]:
        if self._is_send:
            yield from self._sent

    def answer(self) -> Iterator[Any]:
        yield self._receive(self._answer, 2) if self._is_send else self._send(self._answer, 2)

    def _send(self, tensor: Tensor, part: int) -> Any:
        return self._group.send([tensor], self._peer, self._first + part)

    def _receive(self, tensor: Tensor, part: int) -> Any:
        return self._group.recv([tensor], self._peer, self._first + part)


class Communicators:
    """What `weft.runtime.transport.communicators.Communicators` is on GPUs."""

    def __init__(self, mesh: Mesh, device: torch.device, neighbours: object) -> None:
        self._gloo = Gloo(mesh)
        self.wires, self.sums = (
            Communicator(lambda peer, way=way: self._gloo.lines[mesh.rank, peer, way].group, seed)  # type: ignore[misc]
            for seed, way in enumerate((Direction.ACTIVATION, Direction.GRADIENT), 2 * mesh.rank)
        )

    def abort(self) -> None:
        for one in (self.wires, self.sums):
            one.abort()
        self._gloo.shut()

    def close(self) -> None:
        for one in (self.wires, self.sums):
            one.close()


class LateMemory(HostMemory):
    """Read when somebody asks for it, as the memory of a GPU is."""

    is_read_late = True


def _near(made: carriers.Carriers) -> Shared:
    """What `transport="peer"` is on GPUs."""
    return Shared(made.mesh, made.windows, LateMemory())


def _host_of(hosts: int) -> str:
    """Where this rank seems to be, if as many hosts have ranks in order."""
    return f"host {hosts * dist.get_rank() // dist.get_world_size()}"


_launch_group = Nccl._launch


def launch(self: Nccl, device: InstantDevice, group: TransferGroup, communicator: Any) -> None:
    _launch_group(self, group, communicator)
    device.is_first = self.is_first
    if group.work is not None:
        device.launched.append(group.work)


class InstantEvent:
    """A point that was reached when it was made."""

    def record(self, stream: object) -> None: ...

    def query(self) -> bool:
        return True


class InstantStream:
    """Whatever is launched has run when the launch returns."""

    def wait_event(self, event: object) -> None: ...


class InstantDevice:
    """A GPU that keeps up with its host, but for NCCL.

    In a first run CUDA loads kernels, and ends all that was launched before it goes on. Later it
    does so now and then: for new shapes, or for memory.
    """

    entered: Any = InstantStream()

    def __init__(self) -> None:
        self.launched: list[Any] = []  # by NCCL
        self.is_first, self._chance = True, random.Random(0)

    def begin(self) -> Any:
        return self.entered

    def stream(self, name: str) -> InstantStream:
        return InstantStream()

    def enter(self, stream: Any) -> None:
        if self.is_first or self._chance.random() < LATER:
            for work in self.launched:
                work.drain()
            self.launched.clear()
        self.entered = stream

    def event(self) -> InstantEvent:
        return InstantEvent()

    def now(self) -> float:
        return time.perf_counter()

    def take_back(self, points: object) -> None: ...

    def clock(self) -> tuple[float, float]:
        return time.perf_counter(), time.perf_counter()

    def seconds(self, first: float, second: float) -> float:
        return second - first


@contextmanager
def seeming(hosts: int) -> Iterator[None]:
    """Let ranks seem to be on several hosts, for `transport="mixed"`."""
    with patch.object(rendezvous, "_host", partial(_host_of, hosts)):
        yield


@contextmanager
def like_gpus(hosts: int = 1, device: InstantDevice | None = None) -> Iterator[None]:
    """Let the transports of GPUs take ranks of CPUs, driven as those of GPUs are."""
    device = device or InstantDevice()
    with ExitStack() as patches:
        for module in (assembly, carriers, hops, lanes, summing):
            patches.enter_context(patch.object(module, "accelerator_of", lambda _: device))
        patches.enter_context(patch.object(world, "chosen", lambda carrier, *_: carrier))
        patches.enter_context(patch.object(Nccl, "_launch", partialmethod(launch, device)))
        patches.enter_context(patch.object(carriers, "Communicators", Communicators))
        patches.enter_context(patch.object(carriers.Carriers, "_refuse_shared_gpus"))
        patches.enter_context(patch.object(carriers.Carriers, "_peer", _near))
        patches.enter_context(seeming(hosts))
        patches.enter_context(patch.object(Tensor, "record_stream", lambda *_: None))
        yield
