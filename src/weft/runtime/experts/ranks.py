"""Expert ranks: tokens are exchanged by all-to-all over a process group.

A rank that waits for another looks for failures meanwhile: whoever has failed or died is named, and
no wait outlives the deadline. A pipeline lends its mesh for that to all groups in its modules.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

BRIEF = 1e-3  # seconds of a wait in which this rank does not sleep
GLANCE = 1e-4  # between two looks at an exchange
LOOKOUT = 0.02  # between two looks for failures
PATIENCE = 2.0  # in which the failure of another rank is reported, if there was one
MARGIN = 5.0  # after a deadline, until torch ends an exchange that nobody waits for any more


class Lookout(Protocol):
    """What looks after other ranks while this one waits for them."""

    @property
    def deadline(self) -> float | None:
        """Seconds that a wait may take."""

    def watch(self, began: float, what: str, *sources: int) -> None:
        """Refuse to wait any longer for these devices where nothing will come."""


class ExpertRanks:
    """The ranks of a process group."""

    def __init__(self, ranks: dist.ProcessGroup) -> None:
        self._ranks = ranks
        self._lookout: Lookout = _Nobody()
        self._what, self._sources = "the tokens of another rank", tuple[int, ...]()
        self.rank, self.size = dist.get_rank(ranks), dist.get_world_size(ranks)
        self.members = tuple(dist.get_process_group_ranks(ranks))

    def __deepcopy__(self, memo: dict[int, object]) -> ExpertRanks:
        return self  # copies of a model exchange with the same ranks

    def bind(self, lookout: Lookout, what: str, sources: Sequence[int]) -> None:
        """Let waits be looked after, which are for these devices."""
        self._lookout, self._what, self._sources = lookout, what, tuple(sources)

    def counts(self, sent: Tensor) -> Tensor:
        """How many rows come from each rank, given how many go to each; on the CPU."""
        received = torch.empty_like(sent)
        self._await(self._start(received, sent, [], []))
        return received.cpu()

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Rows from all ranks, in their order; gradients go back the same way."""
        found: Tensor = _Exchange.apply(rows, [*sent], [*received], self)  # type: ignore[no-untyped-call]
        return found

    def exchanged(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """Rows from all ranks, without a history; a host waits for those of hosts alone."""
        found = rows.new_empty((sum(received), *rows.shape[1:]))
        if is_fake(rows):  # an outline, which no other rank makes at the same time
            return found
        work = self._start(found, rows.contiguous(), received, sent)
        if rows.device.type == "cpu":
            self._await(work)
        else:
            work.wait()
        return found

    def _start(self, found: Tensor, given: Tensor, received: list[int], sent: list[int]) -> Any:
        options = dist.AllToAllOptions()
        if self._lookout.deadline is not None:
            options.timeout = timedelta(seconds=self._lookout.deadline + MARGIN)
        return self._ranks.alltoall_base(found, given, received, sent, options)

    def _await(self, work: Any) -> None:
        """Wait until an exchange is over here."""
        began = looked = time.monotonic()
        while not work.is_completed():
            now = time.monotonic()
            if now - looked > LOOKOUT:
                self._lookout.watch(began, self._what, *self._sources)
                looked = now
            if now - began > BRIEF:
                time.sleep(GLANCE)
            else:
                os.sched_yield()
        try:
            work.wait()
        except RuntimeError:
            self._blame(began)
            raise

    def _blame(self, began: float) -> None:
        """Torch may notice first that a rank is gone; why, it does not say."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            self._lookout.watch(began, self._what, *self._sources)
            time.sleep(LOOKOUT)


class _Nobody:
    """Looks after nothing: without a pipeline, torch does."""

    deadline = None

    def watch(self, began: float, what: str, *sources: int) -> None:
        """Wait on."""


class _Exchange(torch.autograd.Function):
    """Rows to each rank and from each; gradients from each and to each."""

    @staticmethod
    def forward(
        context: Any, rows: Tensor, sent: list[int], received: list[int], ranks: ExpertRanks
    ) -> Tensor:
        context.sizes, context.ranks = (sent, received), ranks
        return ranks.exchanged(rows, sent, received)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        sent, received = context.sizes
        return context.ranks.exchanged(gradients[0], received, sent), None, None, None


def is_fake(rows: object) -> bool:
    return isinstance(rows, FakeTensor)


def groups_in(module: nn.Module) -> Iterator[ExpertRanks]:
    """The groups with which a module, or one in it, exchanges tokens."""
    for one in module.modules():
        yield from (value for value in vars(one).values() if isinstance(value, ExpertRanks))
