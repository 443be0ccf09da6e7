"""What would help: shorter work, even stages, instant wires, as JSON takes it."""

from __future__ import annotations

import numpy as np

from weft.explain import changes, helps
from weft.timeline import Timeline

MOST = 400_000  # actions that are timed again, all runs together: about a second
LISTED = 20


def what_helps(timeline: Timeline) -> dict[str, object] | None:
    """What helps most, or None where finding it takes too long or the times were measured."""
    actions = timeline.program.actions
    groups = len(np.unique(actions.kind.astype(np.int64) << 32 | actions.stage))
    if timeline.is_measured or groups * len(actions) > MOST:
        return None
    return {
        "changes": [change._asdict() for change in changes(timeline)],
        "stages": [
            {"kind": int(help.kind), "stage": help.stage, "seconds": help.seconds}
            for help in helps(timeline)[:LISTED]
            if help.seconds
        ],
    }
