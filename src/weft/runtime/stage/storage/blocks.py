"""Blocks: memory of the host for what is offloaded, kept and used again.

Page-locked memory is dear to get: the device stops for it. So none is ever given back, and after
the first steps none is asked for. Blocks come in sizes that differ by an eighth, and are cut from
larger pieces, as torch rounds page-locked ones up to a power of two.
"""

from __future__ import annotations

from collections import defaultdict, deque
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.runtime.device.accelerator import DeviceStream

LEAST_PIECE = 1 << 25  # bytes that are page-locked at once
UNIT = 512  # bytes, of which every block has a multiple


class HostBlock(NamedTuple):
    """Bytes of the host; `free_from` is when a device has read the last of what was in them."""

    content: Tensor
    is_pinned: bool
    free_from: Any = None


class HostBlocks:
    """The blocks of a process; threads share them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._free: dict[tuple[bool, int], deque[HostBlock]] = defaultdict(deque)
        self._pieces: list[Tensor] = []  # what is left of page-locked ones
        self.made = 0  # bytes of all blocks

    def take(self, size: int, *, is_pinned: bool, stream: DeviceStream | None) -> HostBlock:
        """A block of at least that many bytes.

        The stream waits until a device has read what was in it; no host does.
        """
        capacity = _capacity(size)
        with self._lock:
            free = self._free[is_pinned, capacity]
            block = free.popleft() if free else self._made(capacity, is_pinned=is_pinned)
        if block.free_from is not None and stream is not None:
            stream.wait_event(block.free_from)
        return block

    def give_back(self, block: HostBlock, free_from: Any = None) -> None:
        """Let others use a block, from an event of a stream on."""
        with self._lock:
            free = self._free[block.is_pinned, block.content.numel()]
            free.append(block._replace(free_from=free_from))

    def _made(self, capacity: int, *, is_pinned: bool) -> HostBlock:
        self.made += capacity
        if not is_pinned:
            return HostBlock(torch.empty(capacity, dtype=torch.uint8, device="cpu"), is_pinned)
        fitting = (i for i, piece in enumerate(self._pieces) if piece.numel() >= capacity)
        index = next(fitting, None)
        if index is None:
            size = max(LEAST_PIECE, 1 << (capacity - 1).bit_length())
            piece = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
        else:
            piece = self._pieces.pop(index)
        if piece.numel() > capacity:
            self._pieces.append(piece[capacity:])
        return HostBlock(piece[:capacity], is_pinned)


def _capacity(size: int) -> int:
    """The bytes of the smallest block that has room for these."""
    step = max(UNIT, (1 << size.bit_length()) // 16)
    return -(-size // step) * step
