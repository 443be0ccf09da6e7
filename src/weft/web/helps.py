"""What would help: kinds of work whose shortening shortens the step, as JSON takes it."""

from __future__ import annotations

import numpy as np

from weft.timeline import Timeline

MOST = 400_000  # actions that are timed again, all runs together: about a second
LISTED = 20


def helps(timeline: Timeline) -> list[dict[str, object]] | None:
    """The best, or None where finding them takes too long or the times were measured."""
    actions = timeline.program.actions
    groups = len(np.unique(actions.kind.astype(np.int64) << 32 | actions.stage))
    if timeline.is_measured or groups * len(actions) > MOST:
        return None
    return [
        {"kind": int(help.kind), "stage": help.stage, "seconds": help.seconds}
        for help in timeline.helps[:LISTED]
        if help.seconds
    ]
