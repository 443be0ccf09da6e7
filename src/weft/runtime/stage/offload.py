"""Offload: what a forward keeps goes to the host, and comes back before its backward.

    F0        autograd saves tensors, which `HeldTensors` holds
    OFFLOAD   each storage once to the host; views of one storage stay views of one copy
    ONLOAD    back, into memory of its own
    B0        finds the same bits

A tensor that is away leaves an empty one, which still counts changes made in place: torch
refuses to differentiate through those, and so do these. Weights and buffers stay where they are.

On a GPU all memory is the forward's stream's, its home, whatever stream copies: it is given back
once home has waited for the copy (`release`), and taken as of where home is. So the memory that is
in use depends on what was launched, not on how far the device is: a host that is ahead of it takes
no more. (With `record_stream` it would: memory comes back only as the device gets there.)
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.runtime.device.accelerator import DeviceEvent, DeviceStream, accelerator_of, used_here
from weft.runtime.device.shards import local
from weft.runtime.stage.storage.blocks import HostBlock, HostBlocks
from weft.runtime.stage.storage.policies import Stored


class HostView(NamedTuple):
    """A tensor that is away: what is left in its place, and where on the host it looks."""

    left: Tensor
    block: HostBlock
    bytes: int  # of the storage
    offset: int
    size: Sequence[int]
    stride: Sequence[int]


class MovedBytes(NamedTuple):
    """Bytes that went to the host, and that came back."""

    away: int
    home: int


class HeldTensors:
    """What one forward of a microbatch keeps, if it can be moved.

    `inputs` are those that it is kept from; `fixed` are tensors that stay, and all views of them;
    so does what is not on the device. Made where the forward runs: on its stream, if it has one.
    """

    def __init__(
        self,
        place: str,
        inputs: Sequence[Tensor],
        fixed: Iterable[Tensor],
        blocks: HostBlocks,
        device: torch.device,
    ) -> None:
        self._place, self._inputs, self._blocks, self._type = place, inputs, blocks, device.type
        self._accelerator = accelerator_of(device)
        self._fixed = {_storage(local(tensor)) for tensor in fixed}
        self._stored: list[weakref.ref[Stored]] = []  # autograd drops them one by one
        self._away: list[HostView] = []
        self._home = self._stream
        self._leaving: list[Tensor] = []  # storages that are still copied
        self._left: DeviceEvent | None = None  # when they are

    # what is saved

    def hold(self, stored: Stored) -> None:
        """Move this one with the others, if it can be moved."""
        if any(map(self._is_movable, stored.tensors)):
            stored.is_held = True
            self._stored.append(weakref.ref(stored))

    # moving

    def offload(self) -> int:
        """Move all to the host; how many bytes these are."""
        self.refuse_away()
        storages: dict[int, list[Tensor]] = {}
        for tensor in self._held():
            storages.setdefault(_storage(tensor), []).append(tensor)
        strangers = {_storage(leaf) for leaf in self._inputs}  # which other streams may have made
        total = 0
        for place, tensors in storages.items():
            source = _bytes_of(tensors[0])
            pinned = source.is_cuda
            block = self._blocks.take(source.numel(), is_pinned=pinned, stream=self._stream)
            block.content[: source.numel()].copy_(source, non_blocking=True)
            total += source.numel()
            self._away += [_moved(tensor, block, source.numel()) for tensor in tensors]
            if self._accelerator is not None:
                self._leaving.append(source)
                if place in strangers:
                    used_here([source])
        self._note_departure()
        return total

    def _note_departure(self) -> None:
        if self._leaving:
            self._left = self._reached(self._stream)
            if self._stream == self._home:
                self.release()

    def release(self) -> None:
        """Give back the memory of what has left; the stream of the forward waits until it has."""
        if self._left is not None and self._home is not None:
            self._home.wait_event(self._left)
            self._leaving, self._left = [], None

    def onload(self) -> int:
        """Move all back; how many bytes these are."""
        self.release()
        if not self._away:
            return 0
        device, blocks = self._away[0].left.device, dict[int, tuple[HostBlock, int]]()
        for view in self._away:
            blocks[id(view.block.content)] = view.block, view.bytes
        with self._at_home():
            found = {
                key: torch.empty(size, dtype=torch.uint8, device=device)
                for key, (_, size) in blocks.items()
            }
        here, home = self._stream, self._home
        if here is not None:  # memory as of where home is, so that nobody there still uses it: not
            # even torch itself, whose deterministic algorithms fill what is empty
            here.wait_event(self._reached(home))
        for key, (block, size) in blocks.items():
            found[key].copy_(block.content[:size], non_blocking=True)
        for view in self._away:
            _returned(view, found[id(view.block.content)])
        self._away.clear()
        arrived = self._reached(here)
        for block, _ in blocks.values():
            self._blocks.give_back(block, arrived)
        return sum(size for _, size in blocks.values())

    def give_up(self) -> None:
        """Give back the memory of the host: what is away never comes back."""
        blocks = {id(view.block.content): view.block for view in self._away}
        self._away.clear()
        for block in blocks.values():
            self._blocks.give_back(block, self._left)

    def refuse_away(self) -> None:
        """Refuse to compute with, or to move, what is on the host."""
        if self._away:
            raise WeftError(
                f"{self._place} needs what it has offloaded, which is still on the host; onload it"
                f" before"
            )

    def _held(self) -> list[Tensor]:
        """What can be moved now."""
        alive = (stored for reference in self._stored if (stored := reference()) is not None)
        kept = (tensor for stored in alive for tensor in stored.tensors)
        return [tensor for tensor in (*kept, *self._inputs) if self._is_movable(tensor)]

    def _is_movable(self, tensor: Tensor) -> bool:
        """Whether its storage says all, and is nobody's who will read or change it."""
        is_plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
        if not is_plain or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
            return False
        if tensor.device.type != self._type:  # what is on the host already
            return False
        return tensor.untyped_storage().nbytes() > 0 and _storage(tensor) not in self._fixed

    # streams

    @property
    def _stream(self) -> DeviceStream | None:
        """Where launches go."""
        return None if self._accelerator is None else self._accelerator.entered

    def _reached(self, stream: DeviceStream | None) -> DeviceEvent | None:
        """Where a stream is."""
        if self._accelerator is None or stream is None:
            return None
        event = self._accelerator.event()
        event.record(stream)
        return event

    @contextmanager
    def _at_home(self) -> Iterator[None]:
        """Where memory is the forward's."""
        if self._accelerator is None or self._home is None:
            yield
            return
        back = self._accelerator.entered
        self._accelerator.enter(self._home)
        try:
            yield
        finally:
            self._accelerator.enter(back)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _bytes_of(tensor: Tensor) -> Tensor:
    """All bytes that a tensor keeps alive."""
    source = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return source.set_(tensor.untyped_storage())


def _moved(tensor: Tensor, block: HostBlock, size: int) -> HostView:
    """Let go of a tensor's memory; it still counts changes of what it was a view of."""
    offset = int(tensor.storage_offset())
    view = HostView(tensor, block, size, offset, tensor.size(), tensor.stride())
    tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return view


def _returned(view: HostView, content: Tensor) -> None:
    """Let a tensor look at its content again."""
    found = torch.empty(0, dtype=view.left.dtype, device=view.left.device)
    view.left.data = found.set_(content.untyped_storage(), view.offset, view.size, view.stride)
