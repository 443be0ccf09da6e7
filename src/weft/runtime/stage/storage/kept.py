"""Kept: a tensor that autograd has saved, as it is, and the version that it had then.

Torch looks for changes in place where it keeps a tensor itself, and not where hooks do.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


class SavedTensor:
    """A tensor that autograd has saved, and the version that it had then."""

    __slots__ = ("__weakref__", "_place", "_tensor", "_version", "is_held")

    def __init__(self, tensor: Tensor, place: str) -> None:
        self._tensor, self._version, self._place = tensor, tensor._version, place
        self.is_held = False

    @property
    def tensors(self) -> Sequence[Tensor]:
        return (self._tensor,)

    def restored(self) -> Tensor:
        found = self._tensor
        if found._version != self._version:
            raise RuntimeError(
                f"{self._place}: one of the variables needed for gradient computation has been"
                f" modified by an inplace operation: a tensor of shape {list(found.shape)}"
                f" is at version {found._version}; expected version {self._version}"
            )
        return found
