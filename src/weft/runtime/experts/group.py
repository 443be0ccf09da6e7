"""Groups of ranks among which tokens are exchanged: rows to each, and rows from each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class ExpertGroup(Protocol):
    """Ranks that hold some of the experts each, as a model sees them.

    Every rank calls the same methods in the same order.
    """

    @property
    def rank(self) -> int:
        """Which of them this is."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def counts(self, sent: Tensor) -> Tensor:
        """How many rows come from each rank, given how many go to each; on the CPU.

        A row of numbers for each rank, where rows are of several kinds.
        """
        ...

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Rows from all ranks, in their order; `rows` are those for rank 0, 1, ... one by one.

        Gradients go back the same way.
        """
        ...


class OneRank:
    """One rank, which has all experts."""

    rank, size = 0, 1

    def counts(self, sent: Tensor) -> Tensor:
        """All rows stay here: as many as are sent."""
        return sent.cpu()

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """The same rows."""
        return rows


ALONE = OneRank()
