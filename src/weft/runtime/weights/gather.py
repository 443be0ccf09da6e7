"""Gathers: each copy of a stage sends the others its part of the new weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from weft.runtime.transport import Transport
from weft.runtime.weights.groups import ParameterGroup
from weft.runtime.weights.lines import Lines


class GatherMember(NamedTuple):
    """One copy: where it is, and its parameter group if that is in this process."""

    device: int
    group: ParameterGroup | None


class Gather:
    """Copies of a parameter group, each of which updates its part of the weights."""

    def __init__(
        self,
        number: int,
        members: Sequence[GatherMember],
        transport: Transport,
        ahead: int,
    ) -> None:
        self._here = {i: one.group for i, one in enumerate(members) if one.group is not None}
        devices = [member.device for member in members]
        self._lines = Lines(number, devices, [*self._here], transport, ahead, "the new weights")
        self._offered, self._gathered = -1, -1
        self._parts: dict[int, Tensor] = {}  # by copy

    def offer(self, update: int) -> None:
        """Send what an update has made here, if all of it is made."""
        if all(group.is_made(update) for group in self._here.values()):
            self._send(update)

    def collect(self, update: int) -> None:
        """Send what is here, and wait for what is elsewhere."""
        if update <= self._gathered:
            return
        self._send(update)
        arrived = self._lines.meet(update)
        self._parts |= {copy: flat for copy, (flat,) in arrived.items()}

    def _send(self, update: int) -> None:
        if update <= self._offered:
            return
        self._parts = {copy: _flat(group) for copy, group in self._here.items()}
        self._offered, parts = update, self._parts
        self._lines.send(update, lambda copy, _: (parts[copy],))

    def write(self, update: int) -> None:
        """Give every copy here what the others have made of their parts, once."""
        if update <= self._gathered:
            return
        parts, self._parts, self._gathered = self._parts, {}, update
        for copy, group in self._here.items():
            group.complete({other: flat for other, flat in parts.items() if other != copy})

    def restart(self) -> None:
        """The last update may come again."""
        self._offered, self._gathered, self._parts = -1, -1, {}


def _flat(group: ParameterGroup) -> Tensor:
    """What a copy has made of its parts, one after the other."""
    return torch.cat([part.detach().flatten() for part in group.made])
