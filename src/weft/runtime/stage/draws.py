"""Draws of stages that are captured: noted while they run without a graph, then replayed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from weft.runtime.stage.capturable import refuse_host_draws
from weft.runtime.stage.captures import Capturer
from weft.runtime.stage.frames import Stretches
from weft.runtime.stage.randomness import Draw
from weft.runtime.stage.seeds import Call, Drawn
from weft.runtime.stage.sources import Noted, Switched


@contextmanager
def noting(draw: Draw, capturer: Capturer, stage: int) -> Iterator[Noted]:
    """Where a forward runs that is looked at for what it draws; nothing on the host."""
    own, hosts = Noted(capturer.own), [Noted(host) for host in capturer.hosts]
    draw.sources = [*hosts, own]
    try:
        yield own
    finally:
        draw.sources = ()
    for host in hosts:
        refuse_host_draws(stage, host.seeds)


def stretches_of(drawn: Drawn | None, noted: Noted) -> Stretches:
    """The stretches of a forward in which something was drawn."""
    found = [drawn.stretches[seed] for seed in noted.seeds] if drawn is not None else []
    return [(stretch.call, stretch.after) for stretch in found]


@contextmanager
def choosing(
    draw: Draw,
    capturer: Capturer,
    generators: Mapping[tuple[Call, Call | None], torch.Generator],
) -> Iterator[None]:
    """Where a forward is captured, in which each stretch draws from its own generator."""

    def choose(seed: int) -> None:
        assert draw.drawn is not None
        stretch = draw.drawn.stretches[seed]
        capturer.draw_from(generators.get((stretch.call, stretch.after)))

    draw.sources = [torch.default_generator, Switched(choose)]
    try:
        yield
    finally:
        draw.sources = ()
