"""Divided sums: each copy sums a part of the gradients, and sends that to the others.

copy 0 has   a0 a1 a2      sums   a0 + b0 + c0
copy 1 has   b0 b1 b2      sums   a1 + b1 + c1      in the order of the copies; then each sends its
copy 2 has   c0 c1 c2      sums   a2 + b2 + c2      sum to all others

The bits are those of whole gradients that are sent to all, in 2 (R - 1) / R times their bytes for
each of R copies in place of R - 1 times. A sum is over when all copies have come to it, not only
sent theirs, so that it needs a thread of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weft.runtime.transport import Transport
from weft.runtime.transport.message import Values
from weft.runtime.weights.exchange import CopyGrads, Exchange, Member, summed
from weft.runtime.weights.lines import Lines

ENOUGH = 3  # devices with copies, from which on it sends less


class DividedSum(Exchange):
    """An exchange in which the work is shared; `numbers` are those of parts and of their sums."""

    def __init__(
        self,
        numbers: tuple[int, int],
        members: Sequence[Member],
        transport: Transport,
        ahead: int,
    ) -> None:
        super().__init__(numbers[0], members, transport, ahead)
        self._copies, devices = len(members), [member.device for member in members]
        self._sums = Lines(numbers[1], devices, [*self._here], transport, ahead, "the sums")
        self._length = 0  # of all gradients

    def collect(self, update: int) -> None:
        """Sum the parts of the copies here, and wait for the other sums."""
        if update <= self._summed:
            return
        super().collect(update)
        total, is_there = summed(self._parts)
        places = [self._place(copy) for copy in self._here]
        sizes = [stop - start for start, stop in places]
        sums = dict(zip(self._here, torch.split(total, sizes), strict=True))
        self._sums.send(update, lambda copy, _: (sums[copy],))
        found = sums | {copy: part for copy, (part,) in self._sums.meet(update).items()}
        whole = torch.cat([found[copy] for copy in range(self._copies)])
        self._parts = [CopyGrads(whole, is_there, is_ours=True)]

    def _for(self, copies: Sequence[int], values: Values) -> Values:
        """What these copies have to sum."""
        flat, flags = values
        self._length = len(flat)
        parts = [flat[slice(*self._place(copy))] for copy in copies]
        return parts[0] if len(parts) == 1 else torch.cat(parts), flags

    def _place(self, copy: int) -> tuple[int, int]:
        """Where the part of a copy begins and ends."""
        return self._length * copy // self._copies, self._length * (copy + 1) // self._copies
