"""Records: the small messages between ranks, each a kind and bytes; nothing is unpickled."""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple, TypeAlias

FRAME = struct.Struct("<BI")  # kind, bytes that follow
ADDRESSED = struct.Struct("<IIB")  # origin, destination, kind
EVERYBODY = 0xFFFFFFFF

RecordHandler: TypeAlias = Callable[[int, bytes], None]  # of the sender and the content


class Record(IntEnum):
    """What a record says."""

    FAILED = 0  # text: the sender gives up, and why
    LEFT = 1  # the sender ends in good order
    GATHERED = 2  # one rank's share of a gathering
    LOSSES = 3
    PING = 4
    PONG = 5
    DATA = 6  # a message lies in shared memory
    CREDIT = 7  # messages were taken out of it
    HEADER = 8  # the layout of a message that comes otherwise
    NORMS = 9
    PARTED = 10  # the sender has let go of the receiver's memory
    LAYOUT = 11  # of the batch of a run, for a rank that is given none
    COUNT = 12  # valid targets of a replica
    DESCRIBED = 13  # the layouts of a run's messages that come otherwise
    NEWS = 14  # another record, which travels along the tree


class News(NamedTuple):
    """A record for all ranks, or for one that may not be connected to its origin."""

    origin: int
    destination: int  # or EVERYBODY
    record: int
    content: bytes

    @classmethod
    def read(cls, content: bytes) -> News:
        origin, destination, record = ADDRESSED.unpack_from(content)
        return cls(origin, destination, record, content[ADDRESSED.size :])

    def framed(self) -> bytes:
        """As it travels."""
        head = ADDRESSED.pack(self.origin, self.destination, self.record)
        return framed(Record.NEWS, head + self.content)


def framed(record: Record, content: bytes = b"") -> bytes:
    """A record as it travels."""
    return FRAME.pack(record, len(content)) + content
