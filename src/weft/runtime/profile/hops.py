"""Hops: how long messages of several sizes take from rank to rank.

    even ranks   ...rest...  send ─> ............................... receive
    odd ranks    ......................receive ...rest...  send ─>

All pairs play at the same time, through the transport that a run uses. The rests are as long as
an action, so that whoever waits sleeps as deeply as in a run. A hop begins when the sender has
the values and ends when the receiver has them: copies and waking up are part of it.
Two of them are what a round trip takes beyond the rest of the other rank, on whatever clocks.

On GPUs hosts are ahead of their devices: nobody sleeps, and a hop is one of many in a row.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from weft.cost import Fit, Link, fitted
from weft.ir.kinds import Direction
from weft.runtime.device.accelerator import accelerator_of
from weft.runtime.profile.sample import Effort, Watch
from weft.runtime.ranks.world import World
from weft.runtime.transport import OrderedTransport
from weft.runtime.transport.message import (
    Fixed,
    Message,
    Receive,
    Route,
    Send,
    Shapes,
    TensorShape,
    Values,
)

WARM_UP = 3
BURST = 16  # messages that a GPU receives one after the other
ITEM = torch.float32.itemsize


class Hops(NamedTuple):
    """Sizes in bytes with their median seconds, and the link that explains them."""

    seconds: tuple[tuple[float, float], ...] = ()
    fit: Fit = Fit(Link(), 1.0)

    def of(self, size: float) -> float:
        """Seconds of a message of that size, by the link."""
        return self.fit.link.latency + self.fit.link.seconds(size)


def hops(world: World, effort: Effort, device: torch.device, rest: float, watch: Watch) -> Hops:
    """What all ranks find, with values on such a device; every rank calls this."""
    ranks = 1 if world.carrier == "loopback" else dist.get_world_size()
    if ranks < 2:
        return Hops()
    sizes, pings = effort.sizes, WARM_UP + effort.pings
    values = [torch.zeros(size // ITEM, device=device) for size in sizes]
    mine: list[list[float]] = [[] for _ in sizes]
    if world.devices.start ^ 1 < ranks:
        make = _Player if accelerator_of(device) is None else _Burst
        players = [make(world, number, value) for number, value in enumerate(values)]
        for ping in range(pings):
            for player, found in zip(players, mine, strict=True):
                found.append(player.play(rest))
            watch("hops", (ping + 1) / pings)
    shares = world.gather(json.dumps(mine).encode(), "the hops")
    seconds = _medians([json.loads(share) for share in shares], len(sizes))
    return Hops(tuple(zip(map(float, sizes), seconds, strict=True)), fitted(sizes, seconds))


def _medians(ranks: Sequence[Sequence[Sequence[float]]], sizes: int) -> list[float]:
    """Of each size, from every rank's seconds by size and ping."""
    pairs = list(zip(ranks[::2], ranks[1::2], strict=False))
    return [
        median(
            (trip - rest) / 2
            for first, second in pairs
            for trip, rest in zip(first[size][WARM_UP:], second[size][WARM_UP:], strict=True)
        )
        for size in range(sizes)
    ]


class _Player:
    """One end of a pair that passes a message of one size to and fro."""

    def __init__(self, world: World, number: int, value: Tensor) -> None:
        self._transport, rank = world.transport, world.devices.start
        self._is_first, self._value, shape = rank % 2 == 0, value, TensorShape.of(value)
        self._out, self._back = _route(rank, number), _route(rank ^ 1, number)
        self._send, self._receive = _ends(world, self._out, self._back, Fixed((shape,)))

    def play(self, rest: float) -> float:
        """Seconds of the round trip, or of the rest in the middle of it."""
        self._transport.begin([self._back], [self._out])
        if self._is_first:
            time.sleep(rest)
            began = time.perf_counter()
            self._send([self._value])
            self._receive()
            ended = time.perf_counter()
        else:
            self._receive()
            began = time.perf_counter()
            time.sleep(rest)
            ended = time.perf_counter()
            self._send([self._value])
        self._transport.end()
        return ended - began


class _Burst(_Player):
    """One end of a pair on GPUs: each sends the other many messages, one after the other."""

    def play(self, rest: float) -> float:
        """Seconds of a message that came here; negative on the second rank, as a rest is."""
        accelerator = accelerator_of(self._value.device)
        assert accelerator is not None
        self._transport.begin([self._back], [self._out])
        accelerator.begin()
        stamps = []
        for is_sending in (self._is_first, not self._is_first):
            for _ in range(BURST):
                if is_sending:
                    self._send([self._value])
                else:
                    self._receive()
                    stamps.append(accelerator.now())
        self._transport.end()
        return (
            (1 if self._is_first else -1) * accelerator.seconds(stamps[0], stamps[-1]) / (BURST - 1)
        )


def _ends(world: World, out: Route, back: Route, shapes: Shapes) -> tuple[Send, Receive]:
    """What sends and receives; transfers that keep an order are launched, each by itself."""
    transport = world.transport
    send, receive = transport.sender(out, shapes), transport.receiver(back, shapes)
    if not world.keeps_order(out.source, out.destination):
        return send, receive
    assert isinstance(transport, OrderedTransport)
    post, launch = transport.poster(back, shapes), transport.post

    def launched(values: Values) -> None:
        send(values)
        launch(True)

    def received() -> Values:
        post()
        launch(True)
        return receive()

    return launched, received


def _route(source: int, number: int) -> Route:
    """The way of a message to the other rank of the pair."""
    direction = Direction.GRADIENT if source % 2 else Direction.ACTIVATION
    return Route(Message(0, direction, number), source, source ^ 1, "a ping", number)
