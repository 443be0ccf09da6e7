"""Summing: which exchange sums the gradients of a stage's copies.

                  each copy gets all                        each copy gets its share
in one order      Exchange; DividedSum, where it sends less    Scatter
by the library    LibrarySum                                LibraryScatter
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from weft.runtime.device.accelerator import accelerator_of
from weft.runtime.ranks.world import World
from weft.runtime.transport.collectives import DeviceSet
from weft.runtime.weights.divided import ENOUGH, DividedSum
from weft.runtime.weights.exchange import Exchange, Member
from weft.runtime.weights.library import LibraryScatter, LibrarySum
from weft.runtime.weights.options import Reduction
from weft.runtime.weights.scatter import Scatter
from weft.runtime.weights.shards import Shard


class Summing:
    """Makes the exchanges between copies; every process makes those of all stages, in one order.

    sets    the devices that have copies of a stage, of each stage
    number  gives the next number of an exchange
    ahead   how many sums of a stage may be on their way at once
    """

    def __init__(
        self,
        world: World,
        device: torch.device,
        reduction: Reduction,
        sets: Sequence[DeviceSet],
        number: Callable[[], int],
        ahead: int,
    ) -> None:
        self._transport, self._number, self._ahead = world.transport, number, ahead
        several = dict.fromkeys(devices for devices in sets if len(devices) > 1)
        self._collectives = world.collectives([*several]) if reduction == "library" else {}
        self._has_threads = accelerator_of(device) is None and world.carrier != "loopback"

    def made(self, members: Sequence[Member], shards: Sequence[Shard]) -> Exchange | None:
        """What sums over these copies; None where none of them is here, or nothing to sum."""
        number, other = self._number(), self._number()
        given = members, self._transport, self._ahead
        if not any(member.holders for member in members):
            return None
        devices = devices_of(members)
        collective = self._collectives.get(devices)
        if collective is not None and shards:
            return LibraryScatter(number, *given, shards, collective)
        if collective is not None:
            return LibrarySum(number, *given, collective)
        if shards:
            return Scatter(number, *given, shards)
        if self._has_threads and len(devices) >= ENOUGH:
            return DividedSum((number, other), *given)
        return Exchange(number, *given)


def devices_of(members: Sequence[Member]) -> DeviceSet:
    """Where copies are, each device once, in order."""
    return tuple(sorted({member.device for member in members}))
