"""Addresses: where each rank can be reached, as they publish it in the group's store.

Nothing secret is put there: whoever reaches a store of torch can read it. A store may also fall
silent, with the process that holds it; no question waits for its answer beyond the deadline.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from threading import Thread
from typing import TypeVar

import torch.distributed as dist
from torch.distributed import distributed_c10d

from weft.errors import RankError
from weft.runtime.ranks.members import Members

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a rank listens, which machine it sees, and the public number of its key."""

    host: str  # ranks that say the same share memory and a user
    clock: str  # and those that say the same here, a clock
    path: str  # latin-1; empty where there is none
    ip: str
    port: int
    key: int

    def place(self, *, is_near: bool) -> bytes | tuple[str, int]:
        """What to connect to."""
        return self.path.encode("latin-1") if is_near else (self.ip, self.port)


class Addresses:
    """The addresses that are known by now; `deadline` seconds from now all must be."""

    def __init__(self, members: Members, deadline: float | None) -> None:
        self.rank, self.ranks = members.device, len(members.ranks)
        self.known: dict[int, Address] = {}
        self.deadline = deadline
        self.until = None if deadline is None else time.monotonic() + deadline
        self.store = distributed_c10d._get_default_store()
        turn = self._asked(lambda: self.store.add(f"weft/turn/{dist.get_rank()}", 1))
        self._folder = f"weft/{turn}/{members.ranks[0]}"  # others may meet at the same time

    @property
    def is_late(self) -> bool:
        """Whether nobody shall be waited for any longer."""
        return self.until is not None and time.monotonic() > self.until

    def put(self, mine: Address) -> None:
        """Publish this rank's."""
        text = json.dumps(asdict(mine))
        self._asked(lambda: self.store.set(f"{self._folder}/{self.rank}", text))

    def read(self, others: Sequence[int]) -> Sequence[int]:
        """Take those of some ranks that have come, in their order; the ranks that are left."""
        for place, other in enumerate(others):
            if other in self.known:
                continue
            if not self._have((other,)):
                return others[place:]
            text = self._asked(lambda: self.store.get(f"{self._folder}/{other}"))  # noqa: B023
            self.known[other] = Address(**json.loads(text))
        return ()

    def missing(self, others: Sequence[int] = ()) -> list[int]:
        """The ranks that have put none, of all or of some, also where the store has lost them."""
        known = {self.rank, *self.known}
        asked = [other for other in others or range(self.ranks) if other not in known]
        return [*self._missing(asked)] if asked else []

    def _missing(self, ranks: Sequence[int]) -> Iterator[int]:
        """By halves: most have, and all ranks may ask at once."""
        if self._have(ranks):
            return
        if len(ranks) == 1:
            yield from ranks
            return
        half = len(ranks) // 2
        yield from self._missing(ranks[:half])
        yield from self._missing(ranks[half:])

    def give_up(self, reason: str) -> None:
        """Let all ranks know that this meeting fails, and why."""
        if self.given_up() is None:
            self._asked(lambda: self.store.set(f"{self._folder}/failed", reason))

    def given_up(self) -> str | None:
        """Why a rank has given up, if one has."""
        if not self._asked(lambda: self.store.check([f"{self._folder}/failed"])):
            return None
        return self._asked(lambda: self.store.get(f"{self._folder}/failed")).decode()

    def _have(self, ranks: Sequence[int]) -> bool:
        names = [f"{self._folder}/{rank}" for rank in ranks]
        return self._asked(lambda: self.store.check(names))

    def _asked(self, question: Callable[[], Answer]) -> Answer:
        """What the store answers; in a thread, as it may never do so."""
        answers: list[Answer] = []
        errors: list[Exception] = []

        def ask() -> None:
            try:
                answers.append(question())
            except Exception as error:
                errors.append(error)

        asking = Thread(target=ask, daemon=True)
        asking.start()
        asking.join(None if self.until is None else max(1.0, self.until - time.monotonic()))
        if answers:
            return answers[0]
        why = f" ({errors[0]})" if errors else ""
        raise RankError(
            f"the store of the process group does not answer{why}: device 0 or torchrun, whichever"
            f" holds it, has ended or is stopped"
        )
