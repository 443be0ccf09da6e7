"""Stopping: all ranks of a run end it after the same step, once one of them is asked to.

    any rank    puts into the group's store that it was asked
    rank 0      sees that before a step, and puts there before which step all of them end
    any rank    looks there before each step

No rank waits for another. Whoever begins a step knows the loss of one before it, of which every
device has run a part: so every rank sees what rank 0 had put there before that one.
"""

from __future__ import annotations

from contextlib import suppress

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed import distributed_c10d

from weft.train.signals import EndRequest

ASKED, END = "asked", "end"


class Stopping:
    """Before which step a run ends; `known` is how many steps ago a loss is known everywhere."""

    def __init__(self, request: EndRequest, *, known: int) -> None:
        self._request, self._known = request, known
        self._end: int | None = None
        self.number: int | None = None  # the signal by which it ends
        self._is_alone = not (dist.is_available() and dist.is_initialized())
        if not self._is_alone:
            store, rank = distributed_c10d._get_default_store(), dist.get_rank()
            run = store.add(f"weft/runs/{rank}", 1)  # of this process group, the same everywhere
            self._store, self._is_first = PrefixStore(f"weft/run/{run}", store), rank == 0

    def is_before(self, step: int) -> bool:
        """Whether the run ends before this step; every rank asks before each of its steps."""
        if self._end is None:
            self._look(step)
        return self._end is not None and step >= self._end

    def _look(self, step: int) -> None:
        number = self._request.number
        if self._is_alone:
            if number is not None:
                self._end, self.number = step, number
            return
        with suppress(RuntimeError):  # the store is gone, which the step will report
            self._exchange(step, number)

    def _exchange(self, step: int, number: int | None) -> None:
        if self._is_first:
            if number is None and self._store.check([ASKED]):
                number = int(self._store.get(ASKED))
            if number is not None:
                self._store.set(END, f"{step + self._known} {number}")
        elif number is not None:
            self._store.set(ASKED, str(number))
        if self._store.check([END]):
            self._end, self.number = map(int, self._store.get(END).split())
