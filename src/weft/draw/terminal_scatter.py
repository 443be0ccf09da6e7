"""Scatters in characters: memory to the right, time upwards; a letter for each of the best."""

from __future__ import annotations

from collections.abc import Iterator
from string import ascii_lowercase

from weft.draw.scatter import Scatter

ROWS, COLUMNS = 18, 70
SCHEDULE, LINE, LIMIT, BEYOND = "o", "*", ":", ">"


def scatter_lines(scatter: Scatter) -> Iterator[str]:
    """The picture, line by line, and what its letters are."""
    dots, (time, size) = scatter.shown, scatter.units
    cells = [[" "] * COLUMNS for _ in range(ROWS)]
    edge = scatter.edge
    span = _span([min(dot.bytes, edge) for dot in dots]), _span([dot.seconds for dot in dots])
    low, high = span[0]
    if low <= scatter.limit <= high:
        for row in cells:
            row[_place(scatter.limit, span[0], COLUMNS)] = LIMIT
    letters = dict(zip(map(id, scatter.schedules.best), ascii_lowercase, strict=False))
    for dot in sorted(dots, key=lambda dot: id(dot) in letters):
        place = ROWS - 1 - _place(dot.seconds, span[1], ROWS)
        usual = BEYOND if dot.bytes > edge else LINE if dot.is_joined else SCHEDULE
        cells[place][_place(min(dot.bytes, edge), span[0], COLUMNS)] = letters.get(id(dot), usual)
    yield f"{time.name}, of a step"
    for index, row in enumerate(cells):
        label = {0: time.number(span[1][1]), ROWS - 1: time.number(span[1][0])}.get(index, "")
        yield f"{label:>8} |{''.join(row)}".rstrip()
    yield " " * 9 + "+" + "-" * COLUMNS
    ends = f"{size.number(low)}{size.number(high):>{COLUMNS - len(size.number(low))}}"
    yield f"{'':9} {ends} {size.name} of the fullest device"
    yield from _legend(scatter, letters, has_limit=low <= scatter.limit <= high)


def _legend(scatter: Scatter, letters: dict[int, str], *, has_limit: bool) -> Iterator[str]:
    time, size = scatter.units
    for dot in scatter.schedules.best:
        if id(dot) in letters:
            yield (
                f"  {letters[id(dot)]}  {dot.name}: {time.amount(dot.seconds)},"
                f" {size.amount(dot.bytes)}"
            )
    others = f"  {SCHEDULE}  other schedules"
    line = f"   {LINE}  synthesised" if any(dot.is_joined for dot in scatter.shown) else ""
    limit = f"   {LIMIT}  all that a device has" if has_limit else ""
    beyond = f"   {BEYOND}  more memory than that" if scatter.beyond else ""
    yield f"{others}{line}{beyond}{limit}"
    if scatter.left_out:
        yield f"Far slower, and left out: {scatter.left_out}."


def _span(values: list[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (0.9 * low, 1.1 * high or 1.0)


def _place(value: float, span: tuple[float, float], cells: int) -> int:
    low, high = span
    return round((value - low) / (high - low) * (cells - 1))
