"""What runs beside the computation, on a thread of its own, may not draw.

Torch's generators belong to the whole process: two threads that draw would take each other's
numbers. So the first forwards are watched for operations that draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from weft.errors import InputError


class Undrawn(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations that draw, of this thread alone."""

    def __init__(self, stage: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stage = stage

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise InputError(
                f"a segment of stage {self._stage} draws ({func}) on the experts stream, which runs"
                f" beside the computation; draw in its attention or experts part"
            )
        call: Callable[..., Any] = func
        return call(*args, **(kwargs or {}))
