"""Draws of initial weights, keyed so that no number of ranks changes them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from weft.runtime.stage.randomness import generators_of
from weft.runtime.stage.seeds import digest, mixed


@contextmanager
def undisturbed(device: torch.device | None = None) -> Iterator[None]:
    """Where something may be drawn or seeded: all global generators are left as they were."""
    generators = generators_of(device)
    states = [generator.get_state() for generator in generators]
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def seeded(seed: int, name: str, device: torch.device) -> Iterator[None]:
    """Where the weights of what has this name are drawn: by it and the seed alone."""
    key = mixed(digest(f"initial weights by {seed}"), digest(name))
    with undisturbed(device):
        for generator in generators_of(device):
            generator.manual_seed(key)
        random.seed(key)
        np.random.seed(key % (1 << 32))
        yield
