"""Randomness that does not depend on the schedule.

Whatever a forward draws is keyed by (seed, step, microbatch, qualified name of the innermost
module in the whole model), so that order, cut, recomputation and the number of devices change
nothing: not only nn.Dropout, but F.dropout, attention, torch.rand_like or a module's own generator.

The seed of torch's generator says where the forward is (`seeds`): torch.utils.checkpoint restores
it before it runs modules again, and they draw what they drew before. Inside a compiled graph no
module is entered: what it draws is keyed by the compiled module.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch

from weft.errors import InputError
from weft.runtime.stage.seeds import ROOT, Call, Drawn, Keyable, Stretch, base_of
from weft.runtime.stage.sources import Source

CPU = [torch.default_generator]
WATCHED = 2  # steps in which a forward is watched for what cannot be keyed


class Draw:
    """What forwards are keyed by; one for each model, shared by its modules.

    places   the step and the microbatch of those that have numbers of their own
    sources  stand in for the generators of a device, where there are any
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.step = seed, 0
        self._begun = 0  # the step with which this process began
        self.places: dict[int, tuple[int, int]] = {}
        self.drawn: Drawn | None = None  # while a forward or backward runs
        self.sources: Sequence[Source] = ()
        self.generators: Sequence[Source] = ()
        self.stack: list[tuple[Stretch, Call]] = []

    def place(self, microbatch: int) -> tuple[int, int]:
        """The step of a microbatch, and which of its microbatches it is."""
        return self.places.get(microbatch, (self.step, microbatch))

    def resume(self, seed: int, step: int) -> None:
        """Draw as after as many steps of a run with that seed."""
        self.seed, self.step, self._begun = seed, step, step

    def is_watching(self, step: int) -> bool:
        """Whether a step is one of the first here, in which forwards are looked at closely."""
        return step < self._begun + WATCHED

    def forward(
        self,
        microbatch: int,
        stage: int | None = None,
        device: torch.device | None = None,
        inside: Keyable | None = None,
    ) -> AbstractContextManager[Drawn]:
        """Key all that is drawn here; the global generators are left as they were.

        Whoever calls a module by hand is `inside` it from the start.
        """
        step, index = self.place(microbatch)
        drawn = Drawn(base_of(self.seed, step, index))
        going = _Forward(self, drawn, self.sources or generators_of(device), inside)
        return _watching(going, stage) if self.is_watching(step) else going

    def enter_loss(self) -> None:
        """Key what the loss draws, at the end of a forward."""
        assert self.drawn is not None
        self.seed_all(self.drawn.stretch(Call("loss", 0)))

    def backward(self, drawn: Drawn | None) -> _Backward:
        """Let checkpoints inside a backward run modules again as they ran in that forward."""
        return _Backward(self, drawn)

    @property
    def is_apart(self) -> bool:
        """Whether what is drawn now is for a shard of values."""
        if self.drawn is None:
            return False
        stretch = self.drawn.stretches.get(torch.default_generator.initial_seed())
        return stretch is not None and stretch.call in self.drawn.shards

    def seed_all(self, stretch: Stretch) -> None:
        for generator in self.generators or generators_of(None):
            generator.manual_seed(stretch.seed)


class _Forward:
    """A forward under way."""

    __slots__ = ("_before", "_draw", "_drawn", "_generators", "_inside", "_states")

    def __init__(
        self,
        draw: Draw,
        drawn: Drawn,
        generators: Sequence[Source],
        inside: Keyable | None,
    ) -> None:
        self._draw, self._drawn, self._generators = draw, drawn, generators
        self._inside = inside

    def __enter__(self) -> Drawn:
        draw = self._draw
        self._before = draw.drawn, draw.generators, draw.stack
        draw.drawn, draw.generators, draw.stack = self._drawn, self._generators, []
        self._states = [generator.get_state() for generator in self._generators]
        if self._inside is None:
            draw.seed_all(self._drawn.stretch(ROOT))
        else:
            self._inside.begin(self._drawn)
        return self._drawn

    def __exit__(self, *_: object) -> None:
        for generator, state in zip(self._generators, self._states, strict=True):
            generator.set_state(state)
        self._draw.drawn, self._draw.generators, self._draw.stack = self._before


class _Backward:
    """A backward under way."""

    __slots__ = ("_before", "_draw", "_drawn")

    def __init__(self, draw: Draw, drawn: Drawn | None) -> None:
        self._draw, self._drawn = draw, drawn

    def __enter__(self) -> None:
        self._before, self._draw.drawn = self._draw.drawn, self._drawn

    def __exit__(self, *_: object) -> None:
        self._draw.drawn = self._before


def generators_of(device: torch.device | None) -> Sequence[Source]:
    """The global ones that a forward on a device draws from."""
    if device is None or device.type != "cuda":
        return CPU
    index = torch.cuda._utils._get_device_index(device, True)
    return [*CPU, torch.cuda.default_generators[index]]


@contextmanager
def _watching(going: _Forward, stage: int | None) -> Iterator[Drawn]:
    """Refuse what draws from generators that are not torch's."""
    before = others_states()
    with going as drawn:
        yield drawn
    whose = drawn_from(before)
    if whose is not None:
        raise InputError(
            f"{'the model' if stage is None else f'stage {stage}'} draws from {whose}, which"
            f" depends on the order in which stages run; draw from torch, which is keyed:"
            f" torch.rand(()).item()"
        )


def others_states() -> dict[str, object]:
    """The states of global generators that are not torch's, by whose they are."""
    return {"random": random.getstate(), "numpy.random": _numpy_state()}


def drawn_from(before: Mapping[str, object]) -> str | None:
    """Whose generator has been drawn from since."""
    after = others_states()
    return next((whose for whose, state in before.items() if state != after[whose]), None)


def _numpy_state() -> tuple[int, bytes]:
    state: Any = np.random.get_state(legacy=False)
    return int(state["state"]["pos"]), state["state"]["key"].tobytes()
