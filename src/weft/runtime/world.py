"""Worlds: who runs which devices, and what they say to each other besides messages.

`Alone` runs every device in this process; `Ranks` runs one device on each rank of
torch.distributed, over gloo, started by torchrun or anything else that sets up a process group.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from weft.errors import InputError, WeftError
from weft.ir.kinds import Direction
from weft.ir.program import Program
from weft.runtime.transport import Loopback, Message, Transport

AHEAD = 4  # receives that are posted before they are needed


class Incoming(NamedTuple):
    """A message that a device will need, and who sends it."""

    message: Message
    source: int


class Form(NamedTuple):
    """Shape and type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype


Sent = deque[tuple[dist.Work, Tensor]]
FormsOf = Callable[[Message], Sequence[Form | None]]


class World(Protocol):
    """What a pipeline needs of the processes that run it."""

    devices: range  # that this process runs
    transport: Transport

    def expect(self, incoming: Sequence[Incoming], forms_of: FormsOf) -> None:
        """Announce what a step will receive, in the order of need."""

    def finish(self) -> None:
        """Wait until what was sent has left."""

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes, where each adds what it knows and zeros."""

    def swap(self, parts: Mapping[int, Tensor], others: Mapping[int, Form]) -> dict[int, Tensor]:
        """Send tensors to devices and receive one from each of the others."""


class Alone:
    """All devices in one process."""

    def __init__(self, program: Program) -> None:
        self.devices = range(program.devices)
        self.transport: Transport = Loopback()

    def expect(self, incoming: Sequence[Incoming], forms_of: FormsOf) -> None:
        """Nothing to prepare."""

    def finish(self) -> None:
        """Nothing is under way."""

    def total(self, values: Tensor) -> Tensor:
        return values

    def swap(self, parts: Mapping[int, Tensor], others: Mapping[int, Form]) -> dict[int, Tensor]:
        return {}


class Ranks:
    """One device for each rank of the process group.

    `depth` messages of a channel may be under way before a send waits for the oldest: at least
    the depth that verification found sufficient, so that waiting never locks up.
    """

    def __init__(self, program: Program, *, depth: int) -> None:
        if dist.get_world_size() != program.devices:
            raise InputError(
                f"{program.name} has {program.devices} devices, the process group"
                f" {dist.get_world_size()} ranks; start one rank for each device"
            )
        rank = dist.get_rank()
        self.devices = range(rank, rank + 1)
        self._gloo = _Gloo(program, depth=max(depth, 1) + 1)
        self.transport: Transport = self._gloo

    def expect(self, incoming: Sequence[Incoming], forms_of: FormsOf) -> None:
        self._gloo.expect(incoming, forms_of)

    def finish(self) -> None:
        self._gloo.finish()

    def total(self, values: Tensor) -> Tensor:
        summed = values.clone()
        dist.all_reduce(summed)
        return summed

    def swap(self, parts: Mapping[int, Tensor], others: Mapping[int, Form]) -> dict[int, Tensor]:
        arrived = {rank: torch.empty(form.shape, dtype=form.dtype) for rank, form in others.items()}
        works = [dist.irecv(tensor, rank) for rank, tensor in arrived.items()]
        works += [dist.isend(tensor.contiguous(), rank) for rank, tensor in parts.items()]
        for work in works:
            if work is not None:
                work.wait()
        return arrived


class _Gloo:
    """Messages as tagged tensors; receives posted ahead, sends waited for oldest first."""

    def __init__(self, program: Program, *, depth: int) -> None:
        self._edges, self._microbatches = max(1, len(program.graph.edges)), program.microbatches
        self._depth = depth
        self._groups = {direction: dist.new_group() for direction in Direction}
        self._sent: dict[tuple[int, Direction], deque[tuple[dist.Work, Tensor]]] = defaultdict(
            deque
        )
        self._expected: deque[Incoming] = deque()
        self._posted: dict[Message, list[tuple[dist.Work | None, Tensor | None]]] = {}
        self._forms_of: FormsOf = lambda message: ()

    def expect(self, incoming: Sequence[Incoming], forms_of: FormsOf) -> None:
        self._expected, self._forms_of = deque(incoming), forms_of
        while len(self._posted) < AHEAD and self._expected:
            self._post()

    def send(self, message: Message, destination: int, values: Sequence[Tensor | None]) -> None:
        group = self._groups[message.direction]
        queue = self._sent[destination, message.direction]
        for place, value in enumerate(values):
            if value is not None:
                tensor = value.contiguous()
                tag = self._tag(message, place)
                work = dist.isend(tensor, group=group, group_dst=destination, tag=tag)
                if work is not None:
                    queue.append((work, tensor))
        while len(queue) > self._depth * max(1, len(values)):
            self._wait(queue.popleft()[0], f"a send of edge {message.edge} to device {destination}")

    def has(self, message: Message) -> bool:
        return True  # receiving waits

    def receive(self, message: Message, source: int) -> Sequence[Tensor | None]:
        while message not in self._posted:
            self._post()
        values = []
        for work, tensor in self._posted.pop(message):
            if work is not None:
                self._wait(
                    work,
                    f"{message.direction.value} of microbatch {message.microbatch} on"
                    f" edge {message.edge} from device {source}",
                )
            values.append(tensor)
        if self._expected:
            self._post()
        return values

    def finish(self) -> None:
        for queue in self._sent.values():
            while queue:
                self._wait(queue.popleft()[0], "the last sends of a step")

    def _post(self) -> None:
        message, source = self._expected.popleft()
        group = self._groups[message.direction]
        posted: list[tuple[dist.Work | None, Tensor | None]] = []
        for place, form in enumerate(self._forms_of(message)):
            if form is None:
                posted.append((None, None))
                continue
            tensor = torch.empty(form.shape, dtype=form.dtype)
            tag = self._tag(message, place)
            posted.append((dist.irecv(tensor, group=group, group_src=source, tag=tag), tensor))
        self._posted[message] = posted

    def _tag(self, message: Message, place: int) -> int:
        return (place * self._edges + message.edge) * self._microbatches + message.microbatch

    def _wait(self, work: dist.Work, what: str) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            raise WeftError(
                f"rank {dist.get_rank()} lost a peer while waiting for {what}"
            ) from error
