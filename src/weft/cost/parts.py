"""Parts: how the time of a stage is divided among the parts of its layers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.ir.actions import Actions
from weft.ir.earliest import Seconds
from weft.ir.kinds import Part

_COMPUTED = [Part.ATTENTION, Part.EXPERTS]
_EXCHANGED = [Part.DISPATCH, Part.COMBINE]


def divided(table: Seconds, actions: Actions) -> Seconds:
    """Seconds of one part, for [kind, part, stage], given those of all such parts of a stage.

    What a stage computes is shared by its attention and experts parts, however many it has of each;
    one that does not dispatch does not take that time, unless none does: then there is none.
    """
    counts = _counts(actions, table.shape[-1])
    found = table / np.maximum(counts, 1)
    shares, own = table[:, _COMPUTED], counts[_COMPUTED]
    present = (shares * own).sum(1)
    is_exchanging = bool(counts[_EXCHANGED].any())
    is_uneven = ((own[0] != own[1]) | (not is_exchanging)) & (present > 0)
    total = (shares if is_exchanging else table).sum(1)
    scaled = shares * (total / np.where(present > 0, present, 1))[:, None]
    found[:, _COMPUTED] = np.where(is_uneven[:, None], scaled, found[:, _COMPUTED])
    return np.asarray(found)


def sharing(actions: Actions, stages: int) -> NDArray[np.int64]:
    """For each action, how many segments share the bytes of its stage; 1 for a whole one."""
    is_cut = actions.segment >= 0
    if not is_cut.any():
        return np.ones(len(actions), np.int64)
    pieces = _counts(actions, stages).sum(0)
    return np.where(is_cut, pieces[actions.stage], 1)


def _counts(actions: Actions, stages: int) -> NDArray[np.int64]:
    """How many of each part each stage has."""
    is_cut = actions.segment >= 0
    cells = np.stack([actions.stage[is_cut], actions.segment[is_cut]])
    stage, segment = np.unique(cells, axis=1)
    counts = np.zeros((len(Part), stages), np.int64)
    np.add.at(counts, (segment % len(Part), stage), 1)
    return counts
