"""A device that knows what is done with memory: who reads what no event says is there, and so on.

    in order   every access comes after the writes, and every write after the reads, before it
    kept       when memory is given back, its own stream has waited for all others that used it, or
               one has that it is kept for (`used_here`): from then on it may be somebody else's

All is computed on a CPU, at once. A stream has a clock for each stream: how much of that one is
over when what is launched next begins.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.runtime.like_gpus import InstantDevice, InstantEvent, InstantStream
from weft.runtime.lane import lanes
from weft.runtime.stage import offload, stage
from weft.runtime.transport import compressed, loopback
from weft.runtime.weights import exchange, groups

MARKING = (stage, offload, compressed, loopback, exchange, groups)
UNWRITTEN = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")
LOOKING = ("set_",)  # at other memory
DEPTH = 12  # frames of a place


class WatchedEvent(InstantEvent):
    """How far all streams were known to be."""

    def __init__(self) -> None:
        self.clock: dict[str, int] = {}

    def record(self, stream: Any) -> None:
        self.clock = dict(stream.clock)


class WatchedStream(InstantStream):
    """What is launched on it begins once it is as far as its clock says."""

    def __init__(self, name: str, device: WatchedDevice) -> None:
        self.name, self._device = name, device
        self.clock = {name: 0}

    def wait_event(self, event: Any) -> None:
        self._device.look()
        for name, time in event.clock.items():
            self.clock[name] = max(time, self.clock.get(name, 0))

    def launch(self) -> Access:
        self.clock[self.name] += 1
        return Access(self.name, self.clock[self.name], place())

    def comes_after(self, access: Access) -> bool:
        return self.clock.get(access.stream, 0) >= access.time


@dataclass(frozen=True, slots=True)
class Access:
    """Something that a stream does, when and where in the code."""

    stream: str
    time: int
    place: Sequence[tuple[str, int]]  # files and lines, the innermost first

    def __str__(self) -> str:
        lines = (f"{file.rpartition('/')[2]}:{line}" for file, line in self.place)
        return f"by {self.stream} at {' < '.join(lines)}"


@dataclass(slots=True)
class Memory:
    """What is done with a storage."""

    alive: StorageWeakRef
    home: str
    written: Access | None = None
    used: dict[str, Access] = field(default_factory=dict)  # last, by stream
    kept_for: set[str] = field(default_factory=set)

    @property
    def is_over(self) -> bool:
        return bool(self.alive.expired())  # type: ignore[no-untyped-call]


class WatchedDevice(InstantDevice):
    """Streams by name, and all memory that was seen; `faults` says what is wrong."""

    def __init__(self) -> None:
        super().__init__()
        self._streams: dict[str, WatchedStream] = {}
        self._memory: dict[int, Memory] = {}
        self._shared: set[int] = set()  # what another stream than its own uses
        self.chosen = self.stream("compute")
        self.entered = self.chosen
        self.faults: list[str] = []

    # as an accelerator

    def begin(self) -> WatchedStream:
        self.entered = self.chosen
        return self.chosen

    def stream(self, name: str) -> WatchedStream:
        return self._streams.setdefault(name, WatchedStream(name, self))

    def enter(self, stream: Any) -> None:
        self.look()
        super().enter(stream)

    def catch_up(self) -> None:
        """The host has waited for all that was launched."""
        for stream in self._streams.values():
            for other in self._streams.values():
                stream.clock[other.name] = other.clock[other.name]

    def event(self) -> WatchedEvent:
        return WatchedEvent()

    # memory

    def of(self, tensor: Tensor, home: str) -> Memory:
        storage = tensor.untyped_storage()
        found = self._memory.get(storage._cdata)
        if found is None or found.is_over:
            if found is not None:
                self._shared.discard(storage._cdata)
                self._given_back(found)
            found = self._memory[storage._cdata] = Memory(
                StorageWeakRef(storage),  # type: ignore[no-untyped-call]
                home,
            )
        return found

    def keep(self, tensors: Iterable[object]) -> None:
        """Stands for `used_here`."""
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                self.keep_for(tensor, self.entered.name)

    def keep_for(self, tensor: Tensor, stream: str) -> None:
        self.of(tensor, self.chosen.name).kept_for.add(stream)

    def access(self, reads: Iterable[Tensor], writes: Iterable[Tensor]) -> None:
        """What a kernel does that is launched now."""
        self.look()
        here: WatchedStream = self.entered
        now = here.launch()
        for tensor in reads:
            memory = self.of(tensor, self.chosen.name)
            if memory.written is not None and not here.comes_after(memory.written):
                self._fault("is read before it is written", memory.written, now)
            self._use(tensor, memory, now)
        for tensor in writes:
            memory = self.of(tensor, here.name)
            for before in memory.used.values():
                if not here.comes_after(before):
                    self._fault("is written while it is used", before, now)
            memory.written = now
            self._use(tensor, memory, now)

    def _use(self, tensor: Tensor, memory: Memory, now: Access) -> None:
        memory.used[now.stream] = now
        if now.stream != memory.home:
            self._shared.add(tensor.untyped_storage()._cdata)

    def look(self) -> None:
        """Note what has been given back."""
        for key in [key for key in self._shared if self._memory[key].is_over]:
            self._shared.remove(key)
            self._given_back(self._memory.pop(key))

    def _given_back(self, memory: Memory) -> None:
        waited_for = [self.stream(name) for name in (memory.home, *memory.kept_for)]
        for access in memory.used.values():
            if not any(stream.comes_after(access) for stream in waited_for):
                self._fault(f"of {memory.home} is given back while it is used", access, None)

    def _fault(self, what: str, before: Access, now: Access | None) -> None:
        self.faults.append(
            "\n".join([f"memory {what}", *map(str, (before, now) if now else (before,))])
        )


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees all that is computed."""

    def __init__(self, device: WatchedDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        schema = func._schema
        name = schema.name.removeprefix("aten::")
        is_view = any(one.alias_info and not one.alias_info.is_write for one in schema.returns)
        if is_view or name in LOOKING:
            return found  # nothing is launched
        given = [*zip(schema.arguments, args, strict=False)]
        given += [(one, kwargs[one.name]) for one in schema.arguments if one.name in kwargs]
        reads: list[Tensor] = []
        writes: list[Tensor] = []
        for argument, value in given:
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            (writes if is_written else reads).extend(tensors_in(value))
        known = {tensor.untyped_storage()._cdata for tensor in (*reads, *writes)}
        made = [one for one in tensors_in(found) if one.untyped_storage()._cdata not in known]
        if name in UNWRITTEN:
            for tensor in made:
                self._device.of(tensor, self._device.entered.name)
        else:
            self._device.access(reads, [*writes, *made])
        return found


def tensors_in(value: Any) -> Iterator[Tensor]:
    yield from (one for one in tree_leaves(value) if isinstance(one, Tensor) and one.numel())


def place() -> list[tuple[str, int]]:
    """Where in Weft something is launched."""
    found: list[tuple[str, int]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < DEPTH:
        if "/weft/" in frame.f_code.co_filename:
            found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return found


@contextmanager
def watched(
    device: WatchedDevice | None = None, *, unmarked: object = None
) -> Iterator[WatchedDevice]:
    """Let all devices of a process be on one that is watched, all streams included.

    A module that is `unmarked` says nothing of what it uses.
    """
    device = device or WatchedDevice()
    with ExitStack() as patches:
        for module in (lanes, offload):
            patches.enter_context(patch.object(module, "accelerator_of", lambda _: device))
        patches.enter_context(patch.object(lanes, "_has_work_beside", lambda _: True))
        for module in MARKING:
            if module is not unmarked:
                patches.enter_context(patch.object(module, "used_here", device.keep))
        patches.enter_context(Watch(device))
        yield device
        device.look()
