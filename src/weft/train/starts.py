"""Starts: a store of its own for each start of a run's ranks.

torchrun's agent keeps one store over all restarts, with the addresses of ranks that are dead
(pytorch/pytorch#135712), and counts restarts on each host apart. So ranks agree on a name that no
start before had:

    other ranks   put a number there that nobody knows       knock/1  = c0ffee
    rank 0        answers every number with the name         c0ffee   = 5eed
    other ranks   say that they have it                      5eed/1   = here

An old knock is answered too, which nobody reads. Rank 0 goes on until all have the name.
"""

from __future__ import annotations

import datetime
import secrets
import time

from torch._C._distributed_c10d import PrefixStore, Store

from weft.errors import RankError

PAUSE = 0.002  # seconds between two looks


def fresh(store: Store, rank: int, ranks: int, patience: datetime.timedelta) -> Store:
    """What is new in this start of a store that others may have had; every rank asks."""
    shared = PrefixStore("weft/starts", store)
    shared.set_timeout(patience)
    if rank:
        return PrefixStore(f"weft/{_answered(shared, rank)}", store)
    name, ends = secrets.token_hex(8), time.monotonic() + patience.total_seconds()
    missing, answered = set(range(1, ranks)), set[bytes]()
    while missing:
        answered |= _answer(shared, name, missing, answered)
        missing -= {one for one in missing if shared.check([f"{name}/{one}"])}
        if time.monotonic() > ends:
            raise RankError(
                f"rank {min(missing)} has not started within {patience.total_seconds():g} s; see"
                f" what it said"
            )
        time.sleep(PAUSE)
    return PrefixStore(f"weft/{name}", store)


def _answered(shared: Store, rank: int) -> str:
    number = secrets.token_hex(8)
    shared.set(f"knock/{rank}", number)
    name = shared.get(number).decode()
    shared.set(f"{name}/{rank}", "here")
    return name


def _answer(shared: Store, name: str, missing: set[int], answered: set[bytes]) -> set[bytes]:
    """Give the name to all who have knocked since."""
    keys = [key for key in (f"knock/{rank}" for rank in missing) if shared.check([key])]
    numbers = {shared.get(key) for key in keys} - answered
    for number in numbers:
        shared.set(number.decode(), name)
    return numbers
