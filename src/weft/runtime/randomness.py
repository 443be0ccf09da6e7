"""Randomness that does not depend on the schedule.

What a random module draws is keyed by (seed, step, microbatch, the module's name in the whole
model), so that order, recomputation and the number of devices change nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

RANDOM_MODULES = (nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RNNBase)


@dataclass(slots=True)
class Draw:
    """What the next forward is keyed by; one for each model, shared by its modules."""

    seed: int = 0
    step: int = 0
    microbatch: int = 0
    places: dict[int, tuple[int, int]] = field(default_factory=dict)  # step and microbatch by id

    def enter(self, microbatch: int) -> None:
        """The forward of a microbatch of this step, or of the step that it has a place in."""
        self.step, self.microbatch = self.places.get(microbatch, (self.step, microbatch))

    def key(self, name: str) -> int:
        text = f"{self.seed}/{self.step}/{self.microbatch}/{name}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")


def keyed(module: nn.Module, draw: Draw, prefix: str = "") -> None:
    """Let every random module within draw by its key, and leave the global state as it was."""
    for name, child in module.named_modules(prefix=prefix):
        if isinstance(child, RANDOM_MODULES):
            _seeded(child, draw, name)


def _seeded(module: nn.Module, draw: Draw, name: str) -> None:
    states: list[tuple[torch.Generator, torch.Tensor]] = []

    def before(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        generator = _generator(inputs)
        states.append((generator, generator.get_state()))
        generator.manual_seed(draw.key(name))

    def after(_module: nn.Module, _inputs: Any, _output: Any) -> None:
        generator, state = states.pop()
        generator.set_state(state)

    module.register_forward_pre_hook(before)
    module.register_forward_hook(after, always_call=True)


def _generator(inputs: tuple[Any, ...]) -> torch.Generator:
    """What a module draws from: the generator of the device of its input."""
    value = inputs[0] if inputs else None
    if isinstance(value, torch.Tensor) and value.is_cuda:
        return torch.cuda.default_generators[value.device.index]
    return torch.default_generator
