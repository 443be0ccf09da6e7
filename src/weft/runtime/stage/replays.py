"""Replays: work of a stage in a frame, captured when it is first done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from weft.errors import InputError, WeftError
from weft.runtime.stage import capturable
from weft.runtime.stage.accumulators import Accumulators, Opened, open_all
from weft.runtime.stage.captures import Capturer
from weft.runtime.stage.frames import Captured, Frame, Given, fill, fixed


class Replays:
    """Captures and replays what one copy of a stage does."""

    def __init__(
        self, module: nn.Module, stage: int, device: torch.device, capturer: Capturer
    ) -> None:
        self._module, self._stage, self._device = module, stage, device
        self._capturer, self._accumulators = capturer, Accumulators()

    def run(
        self,
        frame: Frame,
        name: str,
        values: Given,
        work: Callable[[Any], Any],
        weights: Sequence[nn.Parameter] = (),
    ) -> Any:
        """What work finds, given these values; it may add to the gradients of these weights."""
        captured = frame.captured.get(name)
        if captured is None:
            captured = self._captured(frame, name, values, work, weights)
            frame.captured[name] = captured
        else:
            fill(captured.given, values, f"stage {self._stage}, its {name}")
            open_all(captured.accumulators)
        captured.replay()
        return captured.found

    def _captured(
        self,
        frame: Frame,
        name: str,
        values: Given,
        work: Callable[[Any], Any],
        weights: Sequence[nn.Parameter],
    ) -> Captured:
        given = [fixed(value, self._device) for value in values]
        found: list[Any] = []
        generators = () if frame.captured else frame.generators  # of the forward, which is first
        before = capturable.way_of(self._module)
        with Opened(self._accumulators, weights) as opened:
            try:
                replay = self._capturer.capture(
                    lambda: found.append(work(given)), frame.pool, generators
                )
            except WeftError:
                raise
            except Exception as error:
                raise InputError(
                    f"stage {self._stage}: its {name} cannot be captured in a CUDA graph: {error}."
                    f" Nothing in it may read a tensor on the host, or depend on its data"
                    f" otherwise; change that, {capturable.OFF}"
                ) from error
        capturable.refuse_change(self._stage, before, capturable.way_of(self._module))
        return Captured(replay, given, found[0], opened.used)
