"""The link to the host, as ranks find it that may share one."""

from __future__ import annotations

from dataclasses import replace

import torch

from weft.cost import Link, Share
from weft.runtime.device.link import NUMBER, linked
from weft.schedules import gpipe

CPU = torch.device("cpu")
UNKNOWN = Share().cost(gpipe(devices=2, microbatches=2))


class Others:
    """A rank that finds this bandwidth, beside this one; what each says to the other."""

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth, self.asked = bandwidth, list[str]()

    def gather(self, share: bytes, what: str) -> list[bytes]:
        self.asked.append(what)
        self.own = share
        return [share, NUMBER.pack(self.bandwidth)]


def test_ranks_copy_at_the_same_time_and_the_slowest_counts() -> None:
    slow, fast = Others(1.0), Others(1e300)
    assert linked(UNKNOWN, CPU, slow.gather).network.host == Link(bandwidth=1.0)
    (own,) = NUMBER.unpack(slow.own)
    assert 1.0 < own < 1e15
    assert linked(UNKNOWN, CPU, fast.gather).network.host.bandwidth < 1e300
    assert slow.asked == fast.asked == ["copies to the host", "the links to the host"]


def test_a_link_that_is_known_is_not_measured() -> None:
    host, others = Link(latency=1.0, bandwidth=2.0), Others(1.0)
    known = replace(UNKNOWN, network=replace(UNKNOWN.network, host=host))
    assert linked(known, CPU, others.gather) == known
    assert not others.asked
