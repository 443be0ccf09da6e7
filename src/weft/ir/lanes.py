"""Lanes: the in-order queues of a device, the channels between devices, and how lanes repeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from weft.ir.actions import Actions, Index
from weft.ir.kinds import Direction, Stream


class Channel(NamedTuple):
    """An ordered connection: messages arrive in the order in which they were sent."""

    source: int
    destination: int
    direction: Direction


class Lane(NamedTuple):
    """One in-order queue of one device.

    The wire stream has one for each end of a channel, or one without a channel: the device's one
    wire, which carries all of its transfers, one after the other, in both directions.
    """

    device: int
    stream: Stream = Stream.COMPUTE
    channel: Channel | None = None

    @property
    def is_one_wire(self) -> bool:
        """Whether sends on it wait until their receives are reached: it is no channel's own."""
        return self.stream is Stream.WIRE and self.channel is None


@dataclass(frozen=True, slots=True)
class Period:
    """How a program repeats: per lane, the lengths of its prologue and of its body.

        prologue | body | body | ... | body | epilogue

    Each of the `repeats` repetitions of the body shifts microbatches by `microbatches` and
    versions by `versions`; the epilogue shifts with the last.
    """

    prologue: tuple[int, ...]
    body: tuple[int, ...]
    microbatches: int
    versions: int = 1
    repeats: int = 1

    def shifted(self, actions: Actions, turn: Index) -> Actions:
        """Each action as it is that many turns later."""
        microbatch, version = actions.microbatch, actions.version
        return actions.replace(
            microbatch=np.where(microbatch >= 0, microbatch + turn * self.microbatches, microbatch),
            version=np.where(version >= 0, version + turn * self.versions, version),
        )
