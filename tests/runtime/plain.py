"""Plain torch on the unsplit model: what every pipeline is judged by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from tests.runtime.models import Data
from weft.runtime.batch import cut, weights_of
from weft.runtime.stage.calling import called
from weft.runtime.stage.keyed import KeyedModules
from weft.runtime.stage.randomness import Draw


class Plain:
    """A loop as people write it: one backward for each microbatch, one step of one optimizer.

    Where modules draw, they draw by the keys of a pipeline of this seed.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        microbatches: int,
        loss: Callable[..., Tensor],
        optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
        seed: int = 0,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.model, self._count, self._loss, self._autocast = model, microbatches, loss, autocast
        self._draw = Draw(seed)
        KeyedModules([("", model)], self._draw)
        self._optimizer = optimizer([*model.named_parameters()]) if optimizer else None

    def step(self, batch: Any, target: Any) -> Tensor:
        """One step; the loss of the batch."""
        total = torch.zeros((), dtype=torch.float64)
        given, wanted = cut(batch, self._count, "batch"), cut(target, self._count, "target")
        shares = weights_of(None, self._count)
        for microbatch, (value, aim) in enumerate(zip(given, wanted, strict=True)):
            with self._draw.forward(microbatch) as drawn, self._casting():
                output = called(self.model, [value.cloned()])
                self._draw.enter_loss()
                loss = self._loss(output, *aim.arguments) * shares[microbatch]
            with self._draw.backward(drawn):
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        self._draw.step += 1
        if self._optimizer is not None:
            self._optimizer.step()
            self._optimizer.zero_grad()
        return total

    def _casting(self) -> Any:
        return torch.autocast("cpu", self._autocast) if self._autocast else nullcontext()


def apart(stages: Sequence[nn.Module], model: nn.Module) -> list[str]:
    """Weights, buffers and gradients of the stages that the model does not have so, by name.

    Equal within the rounding of double precision.
    """
    found = []
    theirs = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    for stage in stages:
        for name, mine in (*stage.named_parameters(), *stage.named_buffers()):
            if not is_near(mine, theirs[name]):
                found.append(name)
            if not is_near(mine.grad, theirs[name].grad):
                found.append(f"the gradient of {name}")
    return found


def is_near(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.allclose(one, other, rtol=1e-9, atol=1e-12)


def trained_apart(
    pipeline: Any, plain: Plain, data: Data, stages: Sequence[nn.Module]
) -> list[str]:
    """What differs after some steps: losses, weights, buffers, gradients."""
    found = []
    for number, (batch, target) in enumerate(data):
        loss = pipeline.step(batch, target).loss
        if not is_near(loss.double(), plain.step(batch, target)):
            found.append(f"the loss of step {number}")
    return found + apart(stages, plain.model)
