"""Offload: what a forward keeps goes to the host, and comes back before its backward.

    F0        autograd saves tensors through `HeldTensors`
    OFFLOAD   each storage once to the host; views of one storage stay views of one copy
    ONLOAD    back, into memory of its own
    B0        finds the same bits

A tensor that is away leaves an empty one, which still counts changes made in place: torch
refuses to differentiate through those, and so do these. Weights and buffers stay where they are.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from weft.errors import WeftError
from weft.runtime.device.shards import local


class SavedTensor:
    """A tensor that autograd has saved, and the version that it had then."""

    __slots__ = ("__weakref__", "is_movable", "tensor", "version")

    def __init__(self, tensor: Tensor, *, is_movable: bool) -> None:
        self.tensor, self.version, self.is_movable = tensor, tensor._version, is_movable


class HostView(NamedTuple):
    """A tensor that is away: what is left in its place, and where on the host it looks."""

    left: Tensor
    host: Tensor  # the bytes of a storage
    offset: int
    size: Sequence[int]
    stride: Sequence[int]


class HeldTensors:
    """What one forward of a microbatch keeps, if it can be moved.

    `inputs` are those that it is kept from; `fixed` are tensors that stay, and all views of them.
    """

    def __init__(self, place: str, inputs: Sequence[Tensor], fixed: Iterable[Tensor]) -> None:
        self._place, self._inputs = place, inputs
        self._fixed = {local(tensor).untyped_storage().data_ptr() for tensor in fixed}
        self._tensors: list[weakref.ref[SavedTensor]] = []  # autograd drops them one by one
        self._away: list[HostView] = []
        self._back: list[Tensor] = []  # what another stream has brought back

    def saving(self) -> AbstractContextManager[None]:
        """Where a forward runs whose saved tensors can be moved."""
        return saved_tensors_hooks(self._pack, self._unpack)

    def offload(self) -> int:
        """Move all to the host; how many bytes these are."""
        self.refuse_away()
        storages: dict[int, list[Tensor]] = {}
        for tensor in self._held():
            storages.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
        total = 0
        for tensors in storages.values():
            host = _on_host(tensors[0])
            total += host.nbytes
            self._away += [_moved(tensor, host) for tensor in tensors]
        return total

    def onload(self) -> None:
        """Move all back."""
        storages: dict[int, Tensor] = {}
        for view in self._away:
            if id(view.host) not in storages:
                storages[id(view.host)] = view.host.to(
                    view.left.device, copy=True, non_blocking=True
                )
            storage = storages[id(view.host)].untyped_storage()
            found = torch.empty(0, dtype=view.left.dtype, device=view.left.device)
            view.left.data = found.set_(storage, view.offset, view.size, view.stride)
        self._back = [copied for copied in storages.values() if copied.is_cuda]
        self._away.clear()

    def use(self) -> None:
        """Before a backward: refuse what is on the host; what came back is used by this stream."""
        self.refuse_away()
        for copied in self._back:
            copied.record_stream(torch.cuda.current_stream(copied.device))
        self._back = []

    def refuse_away(self) -> None:
        """Refuse to compute with, or to move, what is on the host."""
        if self._away:
            raise WeftError(
                f"{self._place} needs what it has offloaded, which is still on the host; onload it"
                f" before"
            )

    def _held(self) -> list[Tensor]:
        """What can be moved now."""
        alive = (saved for reference in self._tensors if (saved := reference()) is not None)
        inputs = (leaf for leaf in self._inputs if self._is_movable(leaf))
        return [*(saved.tensor for saved in alive), *inputs]

    def _is_movable(self, tensor: Tensor) -> bool:
        """Whether its storage says all, and is nobody's who will read or change it."""
        is_plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
        if not is_plain or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
            return False
        storage = tensor.untyped_storage()
        return storage.nbytes() > 0 and storage.data_ptr() not in self._fixed

    def _pack(self, tensor: Tensor) -> SavedTensor:
        alias = tensor.detach()  # the module may keep this one, and see it empty
        saved = SavedTensor(alias, is_movable=self._is_movable(alias))
        if saved.is_movable:
            self._tensors.append(weakref.ref(saved))
        return saved

    def _unpack(self, saved: SavedTensor) -> Tensor:
        if saved.is_movable:
            self.refuse_away()
        if saved.tensor._version != saved.version:
            raise RuntimeError(
                f"{self._place}: one of the variables needed for gradient computation has been"
                f" modified by an inplace operation: a tensor of shape {list(saved.tensor.shape)}"
                f" is at version {saved.tensor._version}; expected version {saved.version}"
            )
        return saved.tensor


def _on_host(tensor: Tensor) -> Tensor:
    """A copy of all bytes that a tensor keeps alive."""
    source = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    source.set_(tensor.untyped_storage())
    if not source.is_cuda:
        return torch.empty(source.shape, dtype=torch.uint8).copy_(source)
    host = torch.empty(source.shape, dtype=torch.uint8, pin_memory=True)
    source.record_stream(torch.cuda.current_stream(source.device))  # its memory is given up at once
    return host.copy_(source, non_blocking=True)


def _moved(tensor: Tensor, host: Tensor) -> HostView:
    """Let go of a tensor's memory; it still counts changes of what it was a view of."""
    view = HostView(tensor, host, int(tensor.storage_offset()), tensor.size(), tensor.stride())
    tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return view
