"""Tables: the figures of a campaign, summed over all of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

COLUMNS = (
    "cases",
    "late",
    "not named",
    "left over",
    "saves lost",
    "last error s",
    "last end s",
    "not struck",
)


def shown(rows: Sequence[Row]) -> str:
    """By transport and kind, and by phase, with what all have in common last."""
    parts = [_table(rows, ("transport", "kind")), _table(rows, ("phase",))]
    parts.append(_table(rows, ("schedule",)))
    return "\n\n".join(parts)


def _table(rows: Sequence[Row], keys: Sequence[str]) -> str:
    groups = sorted({tuple(str(row[key]) for key in keys) for row in rows})
    lines = ["| " + " | ".join([*keys, *COLUMNS]) + " |", "|---" * (len(keys) + len(COLUMNS)) + "|"]
    for group in groups:
        here = [row for row in rows if tuple(str(row[key]) for key in keys) == group]
        lines.append("| " + " | ".join([*group, *_cells(here)]) + " |")
    total = ["all", *[""] * (len(keys) - 1), *_cells(rows)]
    return "\n".join([*lines, "| " + " | ".join(total) + " |"])


def _cells(rows: Sequence[Row]) -> list[str]:
    struck = [row for row in rows if row["struck"]]
    slowest = [max((row["slowest"][place] for row in struck), default=0.0) for place in (0, 1)]
    return [
        str(len(struck)),
        str(sum(not row["is_in_time"] for row in struck)),
        str(sum(not row["is_named"] for row in struck)),
        str(sum(bool(row["left"]) for row in struck)),
        str(sum(bool(row["lost"]) for row in struck)),
        *(f"{seconds:.1f}" for seconds in slowest),
        str(len(rows) - len(struck)),
    ]
