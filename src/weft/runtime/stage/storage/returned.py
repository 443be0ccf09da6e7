"""What recomputed modules return: whoever saves it saves a note of how it is computed instead.

    norm -> linear      the linear layer would save what the norm returns, though the norm itself
                        is recomputed: nothing would be gained

A note holds what the module was given, saved as any other tensor is, and may so be on the host; the
weights and buffers that it had, the state of what draws, and autocast. Running it again gives the
same bits.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.utils import _pytree as pytree

from weft.runtime.device.shards import local


class Rerun:
    """A call of a module that can be made again, with what it was given then."""

    def __init__(self, call: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> None:
        leaves, self._form = pytree.tree_flatten((args, kwargs))
        self._call = call
        self._places = [at for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        tensors = [leaves[at] for at in self._places]
        anchor = torch.empty(0, device="cpu", requires_grad=True)
        self._saved: Any = _Saved.apply(anchor, *tensors)  # type: ignore[no-untyped-call]
        for at in self._places:
            leaves[at] = None
        self._leaves = leaves
        self._device = tensors[0].device if tensors else torch.device("cpu")
        self._state = _random_state(self._device)
        kind = self._device.type
        self._autocast = kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def __call__(self) -> Tensor:
        leaves = [*self._leaves]
        for at, tensor in zip(self._places, self._saved.grad_fn.saved_tensors, strict=True):
            leaves[at] = tensor.detach()
        args, kwargs = pytree.tree_unflatten(leaves, self._form)
        kind, is_enabled, dtype = self._autocast
        devices = [self._device] if self._device.type == "cuda" else []
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(torch.random.fork_rng(devices))
            _set_random_state(self._device, self._state)
            stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=is_enabled))
            out: Tensor = self._call(*args, **kwargs)
        return out


class _Saved(torch.autograd.Function):
    """Saves tensors, as whatever hooks there are want it."""

    @staticmethod
    def forward(context: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        context.save_for_backward(*tensors)
        return torch.empty(0, device="cpu")

    @staticmethod
    def backward(context: FunctionCtx, *gradients: Tensor) -> Any:
        raise AssertionError("nothing depends on what was saved")


class Returned:
    """What a recomputed module has returned, or a view of it; computed again when it is needed."""

    __slots__ = ("__weakref__", "_offset", "_rerun", "_size", "_stride", "is_held")

    def __init__(self, rerun: Rerun, tensor: Tensor) -> None:
        self._rerun, self.is_held = rerun, False
        self._size, self._stride = tensor.size(), tensor.stride()
        self._offset = tensor.storage_offset()

    @property
    def tensors(self) -> Sequence[Tensor]:
        return ()

    def restored(self) -> Tensor:
        """The same bits, laid out as they were."""
        return self._rerun().as_strided(self._size, self._stride, self._offset)


class _Noted(NamedTuple):
    out: weakref.ref[Tensor]
    version: int
    rerun: Rerun


class Notes:
    """What modules have returned that can be run again."""

    def __init__(self) -> None:
        self._noted: dict[int, _Noted] = {}  # by memory

    def note(self, out: object, rerun: Rerun) -> None:
        """Remember how this is computed, as long as somebody has it."""
        self._noted = {place: one for place, one in self._noted.items() if one.out() is not None}
        if type(out) is Tensor and _is_whole(out):
            self._noted[_place(out)] = _Noted(weakref.ref(out), out._version, rerun)

    def store(self, tensor: Tensor) -> Returned | None:
        """A note in place of a tensor that was returned and not changed since."""
        noted = self._noted.get(_place(tensor)) if self._noted else None
        out = noted.out() if noted is not None else None
        if noted is None or out is None or not _is_alike(tensor, out):
            return None
        is_as_it_was = _place(out) == _place(tensor) and tensor._version == noted.version
        return Returned(noted.rerun, tensor) if is_as_it_was else None


def _is_whole(out: Tensor) -> bool:
    """Whether a result has memory of its own, which it fills from its start."""
    return out.layout is torch.strided and out._base is None and out.storage_offset() == 0


def _is_alike(tensor: Tensor, out: Tensor) -> bool:
    """Whether the same bytes are the same elements to both."""
    marks = [(one.dtype, one.is_conj(), one.is_neg()) for one in (tensor, out)]
    return marks[0] == marks[1]


def _place(tensor: Tensor) -> int:
    return local(tensor).untyped_storage().data_ptr()


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return torch.get_rng_state(), on_device


def _set_random_state(device: torch.device, state: tuple[Tensor, Tensor | None]) -> None:
    on_host, on_device = state
    torch.set_rng_state(on_host)
    if on_device is not None:
        torch.cuda.set_rng_state(on_device, device)
