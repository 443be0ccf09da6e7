"""Sums by the library: torch's own all-reduce and reduce-scatter, in an order that is theirs.

    flags      which gradients are there, sent as an exchange sends gradients: all copies have
               closed theirs once they have come
    gradients  of the copies here added up, and then summed over all devices with copies

All devices come to their sums in the one order of the program, so that none waits in a circle.
Results agree with those of a fixed order within rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.runtime.transport import Transport
from weft.runtime.transport.collectives import Collective
from weft.runtime.transport.message import Values
from weft.runtime.weights.exchange import CopyGrads, Exchange, Member, flagged, summed
from weft.runtime.weights.scatter import Scatter
from weft.runtime.weights.shards import Shard


class _ByLibrary(Exchange):
    """An exchange of flags, whose sums a library makes."""

    _collective: Collective

    def collect(self, update: int) -> None:
        """Sum what is here, and with what is elsewhere."""
        if update <= self._summed:
            return
        self._send(update)
        own = [CopyGrads.of(part, is_ours=True) for part in self._offered.pop(update).values()]
        others = [flagged(flags) for (flags,) in self._lines.meet(update).values()]
        total, here = summed(own)
        is_there = tuple(map(any, zip(here, *others, strict=True)))
        self._parts = [CopyGrads(self._combined(total), is_there, is_ours=True)]

    def _for(self, copies: Sequence[int], values: Values) -> Values:
        """What these copies need: which gradients are there."""
        return values[1:]

    def _combined(self, total: Tensor) -> Tensor:
        """The sum over all devices, from that of the copies here."""
        return self._collective.summed(total)


class LibrarySum(_ByLibrary):
    """Every copy gets the whole sum."""

    def __init__(
        self,
        number: int,
        members: Sequence[Member],
        transport: Transport,
        ahead: int,
        collective: Collective,
    ) -> None:
        super().__init__(number, members, transport, ahead)
        self._collective = collective


class LibraryScatter(_ByLibrary, Scatter):
    """Each copy gets its share of the sum, and a device those of all its copies at once."""

    def __init__(
        self,
        number: int,
        members: Sequence[Member],
        transport: Transport,
        ahead: int,
        shards: Sequence[Shard],
        collective: Collective,
    ) -> None:
        Scatter.__init__(self, number, members, transport, ahead, shards)
        self._collective = collective
        self._held = [
            [copy for copy, member in enumerate(members) if member.device == device]
            for device in collective.devices
        ]
        self._room = max(map(self._size, self._held))

    def _combined(self, total: Tensor) -> Tensor:
        return self._collective.scattered(self._laid_out(total))[: self._size([*self._here])]

    def _size(self, copies: Sequence[int]) -> int:
        """Of the shares of these copies."""
        return sum(stop - start for start, stop in (self._places[copy] for copy in copies))

    def _laid_out(self, flat: Tensor) -> Tensor:
        """The shares of all devices, of equal length, one after the other."""
        found = flat.new_zeros(len(self._held), self._room)
        for row, copies in zip(found, self._held, strict=True):
            row[: self._size(copies)] = torch.cat([flat[slice(*self._places[c])] for c in copies])
        return found.flatten()
