"""Channels of process groups: transfers from one rank to another in one direction, in order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple, TypeAlias

import torch.distributed as dist
from torch import Tensor

from weft.ir.kinds import Direction
from weft.runtime.stage.values import Structure
from weft.runtime.transport.message import Route

Channel: TypeAlias = tuple[int, Direction]


class Posted(NamedTuple):
    """A receive under way, or a value that does not travel."""

    work: dist.Work | None
    value: Tensor | Structure | None


class Sent(NamedTuple):
    """A send under way, and the tensor that must live until it is over."""

    work: dist.Work
    route: Route
    tensor: Tensor


@dataclass(slots=True)
class Outgoing:
    """The messages of this rank to another in one direction."""

    sent: deque[Sent] = field(default_factory=deque)  # oldest first
    lock: Lock = field(default_factory=Lock)

    def oldest(self, most: int) -> Sent | None:
        """The one to wait for where more than that are under way."""
        with self.lock:
            return self.sent.popleft() if len(self.sent) > most else None


@dataclass(slots=True)
class Incoming:
    """The messages of another rank to this one in one direction.

    Whoever holds the lock may wait for a header: no other message of the channel can be received
    before that one is.
    """

    coming: deque[Route] = field(default_factory=deque)  # not posted yet, as they are sent
    ahead: int = 0  # posted and not taken
    lock: Lock = field(default_factory=Lock)
