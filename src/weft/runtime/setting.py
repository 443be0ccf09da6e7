"""The setting: what training and reading have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from weft.runtime.criterion import Criterion
from weft.runtime.ranks.clock import Recording
from weft.runtime.ranks.world import World
from weft.runtime.stage.randomness import Draw
from weft.runtime.stage.shapes import StageShapes
from weft.runtime.stage.trained import Trained


class Setting(NamedTuple):
    """The stages of a process, those around it, and how microbatches are judged and drawn."""

    world: World
    stages: Sequence[Trained]
    shapes: StageShapes
    criterion: Criterion
    draw: Draw
    record: Callable[[], Recording]
