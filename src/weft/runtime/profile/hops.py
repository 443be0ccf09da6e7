"""Hops: how long messages of several sizes take from rank to rank.

    one rank     ...rest...  send ─> ............................... receive
    the other    ......................receive ...rest...  send ─>

All pairs play at the same time, through the transport that a run uses: first those between two
hosts, then those within one. The rests are as long as an action, so that whoever waits sleeps as
deeply as in a run. A hop begins when the sender has the values and ends when the receiver has
them: copies and waking up are part of it. Two of them are what a round trip takes beyond the rest
of the other rank, on whatever clocks.

On GPUs hosts are ahead of their devices: nobody sleeps, and a hop is one of many in a row.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import permutations
from statistics import median
from typing import NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from weft.cost import Fit, Link, Network, fitted
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

RankPair: TypeAlias = tuple[int, int]  # of ranks


class Hops(NamedTuple):
    """Sizes in bytes with their median seconds, and the link that explains them."""

    seconds: tuple[tuple[float, float], ...] = ()
    fit: Fit = Fit(Link(), 1.0)

    def of(self, size: float) -> float:
        """Seconds of a message of that size, by the link."""
        return self.fit.link.latency + self.fit.link.seconds(size)


class HopTimes(NamedTuple):
    """What messages take from host to host, and within one; `hosts` has that of each rank."""

    far: Hops | None = None
    near: Hops | None = None
    hosts: Sequence[str] = ()

    @property
    def slowest(self) -> Hops:
        """Those from host to host, where there are several."""
        return self.far or self.near or Hops()

    def network(self, messages: tuple[float, ...]) -> Network:
        """Links between all ranks, which send messages of these bytes along each edge."""
        link = self.slowest.fit.link
        if self.far is None or self.near is None:
            return Network(messages, link)
        pairs = permutations(range(len(self.hosts)), 2)
        near = [(one, other) for one, other in pairs if self.hosts[one] == self.hosts[other]]
        return Network(messages, link, dict.fromkeys(near, self.near.fit.link))


def passed(
    world: World,
    pairs: Sequence[RankPair],
    effort: Effort,
    device: torch.device,
    rest: float,
    watch: Watch,
) -> HopTimes:
    """What all ranks find, with values on such a device; every rank calls this.

    Of the pairs of ranks that exchange messages, those play that have no rank in common.
    """
    if world.carrier == "loopback" or dist.get_world_size() < 2:
        return HopTimes()
    hosts = world.hosts
    far = _disjoint(pair for pair in pairs if hosts[pair[0]] != hosts[pair[1]])
    near = _disjoint(pair for pair in pairs if hosts[pair[0]] == hosts[pair[1]])

    def found(playing: Sequence[RankPair], before: Sequence[RankPair]) -> Hops | None:
        parts, done = bool(far) + bool(near), bool(before)
        part = partial(_watched_part, watch, done, parts)
        return _hops(world, playing, effort, device, rest, part) if playing else None

    return HopTimes(found(far, ()), found(near, far), hosts)


def _watched_part(watch: Watch, done: int, parts: int, share: float) -> None:
    watch("hops", (done + share) / parts)


def _disjoint(pairs: Iterable[RankPair]) -> list[RankPair]:
    """As many as are found one after the other of which no two have a rank in common."""
    found, taken = list[RankPair](), set[int]()
    for pair in sorted(pairs):
        if taken.isdisjoint(pair):
            taken.update(pair)
            found.append(pair)
    return found


def _hops(
    world: World,
    pairs: Sequence[RankPair],
    effort: Effort,
    device: torch.device,
    rest: float,
    watch: Callable[[float], None],
) -> Hops:
    """What these pairs find, all at the same time."""
    sizes, pings = effort.sizes, WARM_UP + effort.pings
    mine: list[list[float]] = [[] for _ in sizes]
    own = next((pair for pair in pairs if world.devices.start in pair), None)
    if own is not None:
        make = _Player if accelerator_of(device) is None else _Burst
        values = [torch.zeros(size // ITEM, device=device) for size in sizes]
        players = [make(world, own, number, value) for number, value in enumerate(values)]
        for ping in range(pings):
            for player, found in zip(players, mine, strict=True):
                found.append(player.play(rest))
            watch((ping + 1) / pings)
    shares = world.gather(json.dumps(mine).encode(), "the hops")
    seconds = _medians([json.loads(share) for share in shares], pairs, len(sizes))
    return Hops(tuple(zip(map(float, sizes), seconds, strict=True)), fitted(sizes, seconds))


def _medians(
    ranks: Sequence[Sequence[Sequence[float]]], pairs: Sequence[RankPair], sizes: int
) -> list[float]:
    """Of each size, from every rank's seconds by size and ping."""
    return [
        median(
            (trip - rest) / 2
            for first, second in pairs
            for trip, rest in zip(
                ranks[first][size][WARM_UP:], ranks[second][size][WARM_UP:], strict=True
            )
        )
        for size in range(sizes)
    ]


class _Player:
    """One end of a pair that passes a message of one size to and fro."""

    def __init__(self, world: World, pair: RankPair, number: int, value: Tensor) -> None:
        self._transport, rank = world.transport, world.devices.start
        self._is_first, self._value, shape = rank == pair[0], value, TensorShape.of(value)
        there = Route(Message(0, Direction.ACTIVATION, number), *pair, "a ping", number)
        back = Route(Message(0, Direction.GRADIENT, number), *pair[::-1], "a ping", number)
        self._out, self._back = (there, back) if self._is_first else (back, there)
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
