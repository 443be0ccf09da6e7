"""Division: of a tensor that several processes have, which of them writes it.

    process 0    0.weight 64   0.bias 4   1.weight 64        0.weight 64
    process 1    0.weight 64   0.bias 4   1.weight 64   ->   1.weight 64
    process 2                                2.bias 4        2.bias 4   0.bias 4 (if it has it)

Every process knows what all of them have, and comes to the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from weft.runtime.saves.regions import Held
from weft.runtime.saves.tensors import ChunkName


class Offer(NamedTuple):
    """A chunk that a process could write, and whether any other that has it could as well."""

    bytes: int
    is_alike: bool


def offered(values: Mapping[ChunkName, Held]) -> bytes:
    """What a process has, for all others."""
    rows = [[key, start, one.tensor.nbytes, one.is_alike] for (key, start), one in values.items()]
    return json.dumps(rows).encode()


def read_offers(share: bytes) -> dict[ChunkName, Offer]:
    return {
        (key, tuple(start)): Offer(size, is_alike)
        for key, start, size, is_alike in json.loads(share)
    }


def writers(offers: Sequence[Mapping[ChunkName, Offer]]) -> dict[ChunkName, int]:
    """The process that writes each chunk: one that has it, so that all write about as much.

    The largest are given away first; what copies may have other values of, the first process has.
    """
    holders: dict[ChunkName, list[int]] = {}
    for process, own in enumerate(offers):
        for name in own:
            holders.setdefault(name, []).append(process)
    found, loads = dict[ChunkName, int](), [0] * len(offers)

    def sort_key(name: ChunkName) -> tuple[bool, int, ChunkName]:
        return len(able(name)) > 1, -offers[holders[name][0]][name].bytes, name

    def able(name: ChunkName) -> list[int]:
        first, *_ = every = holders[name]
        return every if offers[first][name].is_alike else [first]

    for name in sorted(holders, key=sort_key):
        found[name] = min(able(name), key=lambda process: (loads[process], process))
        loads[found[name]] += offers[found[name]][name].bytes
    return found
