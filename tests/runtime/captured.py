"""Captures on a CPU: the operations of some work, recorded, and run again on the same memory.

As in a CUDA graph, Python runs at the capture alone, every operation reads and writes the memory
that it had then, and nothing is computed before a replay: what the capture has written is spoilt
afterwards, and what it has changed is put back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

SPOILT = 0x7F  # bytes of a number that nobody would compute


class Operation(NamedTuple):
    """One call, what it returned, and the generator that it draws from."""

    call: Callable[..., Any]
    args: Any
    kwargs: Any
    found: list[Tensor]
    generator: torch.Generator | None

    def again(self) -> None:
        with _Drawing(self.generator):
            values = tree_leaves(self.call(*self.args, **self.kwargs))
        for old, new in zip(self.found, (v for v in values if isinstance(v, Tensor)), strict=True):
            if old.data_ptr() != new.data_ptr():
                old.copy_(new)


class _Drawing:
    """Lets torch's generator be another for a while, whose state moves on."""

    def __init__(self, generator: torch.Generator | None) -> None:
        self._generator = generator

    def __enter__(self) -> None:
        self._before = torch.default_generator.get_state()
        if self._generator is not None:
            torch.default_generator.set_state(self._generator.get_state())

    def __exit__(self, *_: object) -> None:
        if self._generator is not None:
            self._generator.set_state(torch.default_generator.get_state())
            torch.default_generator.set_state(self._before)


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operations with the very tensors that they read and write."""

    def __init__(self, capturer: CpuCaptures) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._capturer = capturer
        self.operations: list[Operation] = []
        self._made: dict[int, Tensor] = {}  # by the place of their memory
        self._found: dict[int, tuple[Tensor, Tensor]] = {}  # what was there, and how it was

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        kwargs = dict(kwargs or {})
        for one in tree_leaves((args, kwargs)):
            if isinstance(one, Tensor) and _place(one) not in self._made:
                self._found.setdefault(_place(one), (one.detach(), _bytes(one).clone()))
        before = torch.default_generator.get_state()
        returned = func(*args, **kwargs)
        is_drawing = not torch.equal(before, torch.default_generator.get_state())
        if is_drawing and self._capturer.chosen is None:
            raise RuntimeError("a generator that no graph knows")
        found = [one for one in tree_leaves(returned) if isinstance(one, Tensor)]
        for one in found:
            if _place(one) not in self._found:
                self._made.setdefault(_place(one), one.detach())
        # Views of what is here, so that nobody who changes a tensor's meaning later is followed.
        held_args, held_kwargs = tree_map_only(Tensor, lambda t: t.detach(), (args, kwargs))
        drawn = self._capturer.chosen if is_drawing else None
        self.operations.append(
            Operation(func, held_args, held_kwargs, [t.detach() for t in found], drawn)
        )
        return returned

    def undo(self) -> None:
        """As if nothing had been computed."""
        for tensor, before in self._found.values():
            _bytes(tensor).copy_(before)
        for tensor in self._made.values():
            _bytes(tensor).fill_(SPOILT)


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _bytes(tensor: Tensor) -> Tensor:
    """All memory of a tensor, without the count of its changes."""
    whole = torch.empty(0, dtype=torch.uint8)
    return whole.set_(tensor.detach().untyped_storage())


class CpuCaptures:
    """Captures of one stage on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.hosts: Sequence[torch.Generator] = ()
        self.own = torch.default_generator
        self.chosen: torch.Generator | None = None
        self.captures = self.replays = 0

    def pool(self) -> object:
        return None

    def renew(self) -> None:
        """Nothing is shared."""

    def generator(self) -> torch.Generator:
        return torch.Generator()

    def draw_from(self, generator: torch.Generator | None) -> None:
        self.chosen = generator

    def capture(
        self, work: Callable[[], None], pool: Any, generators: Sequence[torch.Generator]
    ) -> Callable[[], None]:
        state = torch.default_generator.get_state()
        self.chosen = None
        with Recording(self) as recording:
            work()
        torch.default_generator.set_state(state)
        recording.undo()
        self.captures += 1
        return lambda: self._replay(recording.operations)

    @torch.no_grad()
    def _replay(self, operations: Sequence[Operation]) -> None:
        self.replays += 1
        for operation in operations:
            operation.again()
