"""What would help: shorter work, even stages, instant wires, as JSON takes it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.explain import changes, helps
from weft.timeline import Timeline

MOST = 400_000  # actions that are timed again, all runs together: about a second
MOST_OF_PAGE = 2_000_000  # the same of all timelines of a page
LISTED = 20


def what_helps(timeline: Timeline) -> dict[str, object] | None:
    """What helps most, or None where finding it takes too long or the times were measured."""
    if timeline.is_measured or _effort(timeline) > MOST:
        return None
    return {
        "changes": [change._asdict() for change in changes(timeline)],
        "stages": [
            {"kind": int(help.kind), "stage": help.stage, "seconds": help.seconds}
            for help in helps(timeline)[:LISTED]
            if help.seconds
        ],
    }


def with_helps(
    views: Sequence[dict[str, object]], timelines: Sequence[Timeline]
) -> list[dict[str, object]]:
    """The views of many timelines, each with what helps; of the last None, once it takes long."""
    found, left = [], MOST_OF_PAGE
    for view, timeline in zip(views, timelines, strict=True):
        left -= _effort(timeline)
        found.append(view | {"helps": what_helps(timeline) if left >= 0 else None})
    return found


def _effort(timeline: Timeline) -> int:
    """Actions to be timed again: all of them, for each kind of work at each stage."""
    actions = timeline.program.actions
    return len(actions) * len(np.unique(actions.kind.astype(np.int64) << 32 | actions.stage))
