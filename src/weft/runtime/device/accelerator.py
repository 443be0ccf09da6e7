"""Accelerators: a device whose streams run what a host has launched, later.

    enter    what is launched from here on goes to that stream
    event    a point of a stream, which others can wait for; the host need not

A CPU has none of this: its calls have run when they return.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import cache
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

Seconds: TypeAlias = float

TRIES = 16  # to read a clock


class DeviceEvent(Protocol):
    """A point of a stream."""

    def record(self, stream: Any) -> None: ...

    def query(self) -> bool:
        """Whether the device has reached it."""


class DeviceStream(Protocol):
    """What runs in order what was launched on it."""

    def wait_event(self, event: Any) -> None: ...


class Accelerator(Protocol):
    """The streams of one device; `entered` is where launches go."""

    entered: DeviceStream

    def begin(self) -> DeviceStream:
        """Let `entered` be the stream that the user has chosen."""

    def stream(self, name: str) -> DeviceStream:
        """One stream for each name."""

    def enter(self, stream: DeviceStream) -> None:
        """Launch on that stream from now on."""

    def event(self) -> DeviceEvent:
        """An event that orders streams."""

    def now(self) -> DeviceEvent:
        """A point of the entered stream that has a time."""

    def take_back(self, points: Iterable[Any]) -> None:
        """Points that nobody asks for any more: making and dropping events takes time."""

    def clock(self) -> tuple[DeviceEvent, Seconds]:
        """A point that the device has reached, and the time of the host then."""

    def seconds(self, first: DeviceEvent, second: DeviceEvent) -> Seconds:
        """From one point to another; waits until the device has reached both."""


class Cuda:
    """A CUDA device, as this process uses it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: dict[str, torch.cuda.Stream] = {}
        self._unused: list[torch.cuda.Event] = []
        self.begin()

    def begin(self) -> Any:
        self.entered: Any = torch.cuda.current_stream(self._device)
        return self.entered

    def stream(self, name: str) -> torch.cuda.Stream:
        if name not in self._streams:
            self._streams[name] = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        return self._streams[name]

    def enter(self, stream: Any) -> None:
        torch.cuda.set_stream(stream)
        self.entered = stream

    def event(self) -> torch.cuda.Event:
        return torch.cuda.Event()  # type: ignore[no-untyped-call]

    def now(self) -> torch.cuda.Event:
        event = self._unused.pop() if self._unused else _timed_event()
        event.record(self.entered)
        return event

    def take_back(self, points: Iterable[Any]) -> None:
        self._unused += points

    def clock(self) -> tuple[torch.cuda.Event, Seconds]:
        """By a stream on which nothing else waits; of several tries the one that took least."""
        idle, found = self.stream("clock"), []
        for _ in range(TRIES):
            event = _timed_event()
            began = time.perf_counter()
            event.record(idle)
            event.synchronize()
            ended = time.perf_counter()
            found.append((ended - began, (began + ended) / 2, event))
        _, middle, event = min(found, key=lambda one: one[0])
        return event, middle

    def seconds(self, first: Any, second: Any) -> Seconds:
        first.synchronize()
        second.synchronize()
        return float(first.elapsed_time(second)) / 1000


def _timed_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def accelerator_of(device: torch.device) -> Accelerator | None:
    """The streams of a GPU; a CPU has none."""
    if device.type != "cuda":
        return None
    return _cuda(torch.cuda._utils._get_device_index(device, True))


@cache
def _cuda(index: int) -> Cuda:
    return Cuda(torch.device("cuda", index))


def onto(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device; a host does not wait for what it hands to a GPU."""
    if device.type == "cuda" and not tensor.is_cuda:
        if tensor.is_pinned():  # and would be read when its user may have changed it
            tensor = tensor.clone()
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def used_here(tensors: Iterable[object]) -> None:
    """Keep the memory of these until the current stream is done with it, wherever it came from."""
    for tensor in tensors:
        if isinstance(tensor, Tensor) and tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
