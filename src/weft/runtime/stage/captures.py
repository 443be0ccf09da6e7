"""Captures: what a device does, recorded once, and replayed without Python.

    first   F: capture, replay    B: capture, replay
    later   F: copy in, replay    B: copy in, replay

Knows CUDA graphs; knows no stages.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch

from weft.errors import InputError

Replay: TypeAlias = Callable[[], object]


class Capturer(Protocol):
    """Captures the work of one stage.

    hosts  generators whose draws cannot be captured
    own    the generator that work draws from by default
    """

    hosts: Sequence[torch.Generator]
    own: torch.Generator

    def pool(self) -> object:
        """Memory for captures of which one never runs beside another."""

    def renew(self) -> None:
        """Let later captures share nothing with those so far, which may be dropped."""

    def generator(self) -> torch.Generator:
        """One that captured work can draw from; its seed counts when the work is replayed."""

    def draw_from(self, generator: torch.Generator | None) -> None:
        """Let what is captured from here on draw from this one, or not at all."""

    def capture(
        self, work: Callable[[], None], pool: Any, generators: Sequence[torch.Generator]
    ) -> Replay:
        """Record what work does, which may draw from these; nothing is computed before a replay."""


class Pool(NamedTuple):
    """Memory of graphs, and the stream that they are captured on.

    Torch keeps a workspace of cuBLAS for each stream, in the memory of the first graph that is
    captured there, and may give it up with any of them. So stages, whose graphs may run at the same
    time, have streams of their own, and get others before graphs are dropped.
    """

    handle: Any
    stream: torch.cuda.Stream


class CudaGraphs:
    """Captures CUDA graphs of one stage."""

    def __init__(self, device: torch.device) -> None:
        if device.type != "cuda":
            raise InputError(
                f"graphs=True replays CUDA graphs, and the weights are on {device}; move the stages"
                f" to a GPU before the pipeline is made, or leave graphs off"
            )
        index = torch.cuda._utils._get_device_index(device, True)
        self._device = torch.device("cuda", index)
        self.hosts: Sequence[torch.Generator] = [torch.default_generator]
        self.own = torch.cuda.default_generators[index]
        self._unregistered = self.own.clone_state()
        self.renew()

    def pool(self) -> Pool:
        return Pool(torch.cuda.graph_pool_handle(), self._stream)

    def renew(self) -> None:
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def generator(self) -> torch.Generator:
        return torch.Generator(self._device)

    def draw_from(self, generator: torch.Generator | None) -> None:
        """Torch refuses to capture a draw from a state that no graph knows."""
        self.own.graphsafe_set_state(generator or self._unregistered)

    def capture(
        self, work: Callable[[], None], pool: Any, generators: Sequence[torch.Generator]
    ) -> Replay:
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        here, there = torch.cuda.current_stream(self._device), pool.stream
        # Torch writes seeds on the stream of a capture as it begins, and on this one to replay.
        there.wait_stream(here)
        with self._own_state_kept(), _without_collection(), torch.cuda.stream(there):
            # Other threads go on with what this mode forbids to this one alone.
            graph.capture_begin(pool=pool.handle, capture_error_mode="thread_local")
            try:
                self.draw_from(None)
                work()
            except BaseException:
                with suppress(Exception):
                    graph.capture_end()
                raise
            graph.capture_end()
        here.wait_stream(there)
        return graph.replay

    @contextmanager
    def _own_state_kept(self) -> Iterator[None]:
        """Torch registers the state that the device's generator has; a failure would spoil it."""
        before = self.own.graphsafe_get_state()
        self.own.graphsafe_set_state(self.own.clone_state())
        try:
            yield
        finally:
            self.own.graphsafe_set_state(before)


@contextmanager
def _without_collection() -> Iterator[None]:
    """A graph that is found to be garbage must not be destroyed while another is captured."""
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_collecting:
            gc.enable()
