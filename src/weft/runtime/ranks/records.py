"""Records: the small messages between ranks, each a kind and bytes; nothing is unpickled."""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias

FRAME = struct.Struct("<BI")  # kind, bytes that follow

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


def framed(record: Record, content: bytes = b"") -> bytes:
    """A record as it travels."""
    return FRAME.pack(record, len(content)) + content
