"""A traced piece: some calls of a model, and what they can be given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from weft.errors import InputError
from weft.runtime.stage.calling import Piece

MISSING = object()  # an argument that is not given, and has no default


class TracedPiece(Piece):
    """Some calls of a traced model.

    calls  by mode, the function that makes them
    reads  the names of its arguments
    fixed  inputs that are no tensors, and are what they were in the example
    defaults  of inputs, which they are where they are not given
    rows   inputs whose first dimension is what it was in the example
    """

    is_drawing = False  # functions that draw are modules

    def __init__(
        self,
        takes: Sequence[str],
        key: str,
        *,
        calls: Mapping[bool, Callable[..., Any]],
        reads: Sequence[str],
        fixed: Mapping[str, Any],
        defaults: Mapping[str, Any],
        rows: Mapping[str, int],
    ) -> None:
        super().__init__(takes, key)
        self._calls, self._reads = dict(calls), tuple(reads)
        self._fixed, self._rows = dict(fixed), dict(rows)
        self._defaults = dict(defaults)

    @property
    def modes(self) -> tuple[bool, ...]:
        """Of training and evaluation, what it can be in."""
        return tuple(self._calls)

    def forward(self, **values: Any) -> Any:
        call = self._calls.get(self.training)
        if call is None:
            raise InputError(
                f"the model does other calls in {_mode(self.training)} than in"
                f" {_mode(not self.training)}, in which it was split, and its stages can only do"
                f" these; split it in the other mode, or give a list of modules"
            )
        self._check(values)
        missing = [name for name in self._reads if name not in values]
        if missing:
            raise InputError(f"the stage reads {missing[0]}, which it was not given")
        return call(self, *[values[name] for name in self._reads])

    def _check(self, values: Mapping[str, Any]) -> None:
        for name, fixed in self._fixed.items():
            value = values.get(name, self._defaults.get(name, MISSING))
            if type(value) is not type(fixed) or value != fixed:
                raise InputError(
                    f"{name} was {fixed!r} in the example by which the model was split, and its"
                    f" stages compute that alone; split with an example that has it"
                )
        for name, rows in self._rows.items():
            for leaf in pytree.tree_leaves(values.get(name)):
                if isinstance(leaf, Tensor) and leaf.dim() and len(leaf) != rows:
                    raise InputError(
                        f"{name} has {len(leaf)} rows; torch.export has fixed them to the {rows} of"
                        f" the example; give an example of one microbatch, and even microbatches"
                    )


def _mode(is_training: bool) -> str:
    return "training" if is_training else "evaluation"


class Packed:
    """A call whose result is put together as the model's output."""

    def __init__(self, call: Callable[..., Any], packed: Callable[[Any], Any]) -> None:
        self._call, self._packed = call, packed

    def __call__(self, *args: Any) -> Any:
        return self._packed(self._call(*args))
