"""A stage of a pipeline, or a segment of one, with what is known of it before every step."""

from __future__ import annotations

from typing import NamedTuple

from weft.runtime.stage.locks import Locks
from weft.runtime.stage.shapes import StageShapes
from weft.runtime.stage.stage import Stage


class Trained(NamedTuple):
    """What trains; `locks` is what no forward may change."""

    stage: Stage
    locks: Locks
    shapes: StageShapes

    def begin_training(self) -> None:
        self.stage.refuse_exchanged()
        self.stage.begin(self.locks, self.shapes)

    def begin_reading(self) -> None:
        """Nothing but its weights has to stay as it is."""
        self.stage.begin(Locks(weights=self.locks.weights), self.shapes)
