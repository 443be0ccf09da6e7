"""Seeds: what a forward draws by, wherever it is among its modules.

    enter block    seed by (block, its first call)
      enter drop   seed by (drop, its first call)
      leave drop   seed by (block, its first call, after drop)
    leave block    seed by (model, after block)

Knows calls and numbers; knows neither modules nor generators.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, Protocol

MASK = (1 << 63) - 1


class Call(NamedTuple):
    """A module's forward: under which name, and how often that name was called before."""

    name: str
    occurrence: int


ROOT = Call("", 0)  # the whole model's


class Keyable(Protocol):
    """A module that may draw.

    `shard` is not 0 where it works on a shard of values, and draws by numbers of its own.
    """

    shard: int

    def names_under(self, name: str) -> list[str]:
        """Under which names another module may call this one."""

    def begin(self, drawn: Drawn) -> None:
        """Enter as the first; nobody has to leave."""


class Stretch(NamedTuple):
    """A stretch of a call, from its start or the end of another one to the next."""

    call: Call
    after: Call | None
    seed: int


@dataclass(slots=True)
class Drawn:
    """What one forward of a microbatch has entered; its backward may run parts of it again."""

    base: int
    stretches: dict[int, Stretch] = field(default_factory=dict)  # by seed
    calls: dict[tuple[int, int], Call] = field(default_factory=dict)  # by stretch and module
    counts: dict[object, int] = field(default_factory=dict)
    shards: dict[Call, int] = field(default_factory=dict)  # of calls that work on one

    def stretch(self, call: Call, after: Call | None = None) -> Stretch:
        """A stretch of a call, known by its seed from now on."""
        seed = mixed(self.base, word_of(call, after))
        shard = self.shards.get(call, 0)
        found = Stretch(call, after, mixed(seed, shard) if shard else seed)
        self.stretches[found.seed] = found
        return found

    def call(self, stretch: Stretch, module: Keyable) -> Call:
        """The call of a module from a stretch: the same one when a checkpoint runs it again."""
        key = (stretch.seed, id(module))
        if key not in self.calls:
            names = module.names_under(stretch.call.name)
            name = names[self._count((stretch.call, key[1])) % len(names)]
            call = self.calls[key] = Call(name, self._count(name))
            if module.shard:
                self.shards[call] = module.shard
        return self.calls[key]

    def _count(self, key: object) -> int:
        count = self.counts.get(key, 0)
        self.counts[key] = count + 1
        return count


@lru_cache(maxsize=1 << 14)
def digest(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


@lru_cache(maxsize=1 << 10)
def base_of(seed: int, step: int, microbatch: int) -> int:
    return digest(f"{seed}/{step}/{microbatch}")


@lru_cache(maxsize=1 << 14)
def word_of(call: Call, after: Call | None) -> int:
    return digest(f"{call} {after}")


def mixed(base: int, word: int) -> int:
    """A seed from two numbers (the finaliser of SplitMix64)."""
    base = (base ^ word) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    base = (base ^ base >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    base = (base ^ base >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return (base ^ base >> 31) & MASK
