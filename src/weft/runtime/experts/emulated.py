"""An emulated group: one process is every rank, and has the experts of all.

    rank 0   attention ─ exchange ·················· experts ─ exchange ···
    rank 1                        attention ─ exchange                  ···

Each rank runs on a thread of its own, one at a time: who comes to an exchange leaves its rows there
and lets the next one run, until all have come. Rows are cut and joined by plain operations of
torch, so that autograd finds its way back through all ranks at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Semaphore, Thread, local
from typing import Any, TypeVar

import torch
from torch import Tensor

from weft.errors import InputError, WeftError

T = TypeVar("T")


class Emulated:
    """A group of as many ranks in this process, for `weft.Reference`.

    A model that is built with it has all experts; of them, each rank computes its own.
    """

    is_emulated = True

    def __init__(self, size: int) -> None:
        if size < 1:
            raise InputError(f"a group cannot have {size} expert ranks; use 1 or more")
        self.size, self._here = size, local()

    def __deepcopy__(self, memo: dict[int, object]) -> Emulated:
        return self  # copies of a model are ranks of the same group

    @property
    def rank(self) -> int:
        """That of the thread that asks; 0 where none runs."""
        found: int = getattr(self._here, "rank", 0)
        return found

    def counts(self, sent: Tensor) -> Tensor:
        """How many rows come from each rank, given how many go to each; on the CPU."""
        return torch.stack([counts[self.rank] for counts in self._met(sent)]).cpu()

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Rows from all ranks, in their order, of those that each has for the others."""
        pieces = rows.split_with_sizes([*sent])
        return torch.cat([cut[self.rank] for cut in self._met(pieces)])

    def run(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """What a call for each rank returns; all of them exchange as often."""
        turns = _Turns(len(calls))

        def ranked(rank: int) -> T:
            self._here.rank, self._here.turns = rank, turns
            return calls[rank]()

        return turns.run(ranked)

    def _met(self, value: T) -> list[T]:
        """What all ranks bring to an exchange."""
        turns: _Turns | None = getattr(self._here, "turns", None)
        if turns is None:
            if self.size == 1:
                return [value]
            raise InputError(
                "tokens of an emulated expert group are exchanged outside of a forward of"
                " weft.Reference: an Emulated group is for that alone, and torch.utils.checkpoint"
                " would exchange them again in the backward. Give a Pipeline a model that was built"
                " with ExpertRanks, and leave checkpoints to lower.recompute"
            )
        return turns.meet(self.rank, value)


class _Turns:
    """Threads of which one runs at a time, in the order of the ranks; each draws as if alone."""

    def __init__(self, ranks: int) -> None:
        self._turns = [Semaphore(0) for _ in range(ranks)]
        self._given: list[list[Any]] = [[] for _ in range(ranks)]  # to each exchange, by rank
        self._is_over = [False] * ranks
        self._error: BaseException | None = None
        self._drawing = [_drawn()] * ranks  # the state of torch's generators

    def run(self, call: Callable[[int], T]) -> list[T]:
        ranks, found = range(len(self._turns)), dict[int, T]()
        is_learning = torch.is_grad_enabled()  # which a thread does not inherit

        def work(rank: int) -> None:
            self._take_turn(rank)
            try:
                with torch.set_grad_enabled(is_learning):
                    found[rank] = call(rank)
            except BaseException as error:
                self._error = self._error or error
            self._is_over[rank] = True
            self._pass_on(rank)

        before = _drawn()
        threads = [Thread(target=work, args=(rank,), daemon=True) for rank in ranks]
        for thread in threads:
            thread.start()
        self._turns[0].release()
        for thread in threads:
            thread.join()
        _draw_from(before)
        if self._error is not None:
            raise self._error
        return [found[rank] for rank in ranks]

    def meet(self, rank: int, value: T) -> list[T]:
        """Let all others come to the exchange to which a rank has come."""
        exchange = len(self._given[rank])
        self._given[rank].append(value)
        self._pass_on(rank)
        self._take_turn(rank)
        if self._error is not None:
            raise WeftError("another rank of the emulated group has failed")
        if any(len(given) <= exchange for given in self._given):
            raise InputError(
                "the ranks of an emulated expert group do not exchange tokens equally often; let"
                " the model exchange them also where a rank has none"
            )
        return [given[exchange] for given in self._given]

    def _take_turn(self, rank: int) -> None:
        self._turns[rank].acquire()
        _draw_from(self._drawing[rank])

    def _pass_on(self, rank: int) -> None:
        self._drawing[rank] = _drawn()
        ranks = len(self._turns)
        after = [(rank + step) % ranks for step in range(1, ranks + 1)]
        for other in after:
            if not self._is_over[other]:
                self._turns[other].release()
                return


def _drawn() -> list[Tensor]:
    states = [torch.get_rng_state()]
    has_cuda: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return states + (torch.cuda.get_rng_state_all() if has_cuda else [])


def _draw_from(states: Sequence[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])
