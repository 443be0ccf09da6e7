"""Output: tables and pictures on a screen, plain text in a pipe, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from shutil import get_terminal_size
from typing import Literal

from rich.console import Console, ConsoleDimensions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 120
UNBOUNDED = 10_000  # a table in a pipe is as wide as it needs


class Screen(Console):
    """Leaves a broken pipe to the one place that gives it a status."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def screen(*, is_coloured: bool | None = None) -> Screen:
    """Standard output; as wide as a page in a pipe; coloured as asked, or as it can be."""
    console = _console(is_coloured, "auto")
    if console.color_system == "standard":
        console = _console(is_coloured, "256")  # which terminals that claim 16 approximate
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    elif console.is_dumb_terminal:
        console.size = ConsoleDimensions(*get_terminal_size())  # which rich takes for 80 x 25
    return console


def _console(is_coloured: bool | None, colours: Literal["auto", "256"]) -> Screen:
    return Screen(
        color_system=colours,
        force_terminal=is_coloured or None,
        no_color=None if is_coloured is None else not is_coloured,
        highlight=False,
        markup=False,
        emoji=False,
    )


def has_colour(console: Console) -> bool:
    return console.color_system is not None and not console.no_color


def show(*items: RenderableType) -> None:
    """Print lines and tables, one below the other, without blanks at the end of a line."""
    console = screen()
    room = console.width if console.is_terminal else UNBOUNDED
    with console.capture() as captured:
        for item in items:
            console.width = max(room, _needed(console, item))
            console.print(item)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _needed(console: Console, item: RenderableType) -> int:
    """The width without which a table cuts words or numbers."""
    if not isinstance(item, Table):
        return 0
    unbounded = console.options.update(width=UNBOUNDED)
    return Measurement.get(console, unbounded, item).minimum


def show_picture(console: Console, picture: Text) -> None:
    """Print a picture that has been made to fit."""
    with console.capture() as captured:
        console.print(picture, soft_wrap=True)
    print(captured.get(), end="")


def show_json(value: Mapping[str, object]) -> None:
    """Print one JSON object, numbers in full."""
    print(json.dumps(value, allow_nan=False))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Rows below their headings: words to the left, numbers to the right."""
    made = _grid(header_style="bold")
    for index, column in enumerate(columns):
        is_words = any(not _is_number(row[index]) for row in rows)
        justify: Literal["left", "right"] = "left" if is_words else "right"
        words = [word for row in rows for word in row[index].split()]
        longest = max(map(len, words), default=0)  # which no narrow screen shall cut
        made.add_column(column, justify=justify, no_wrap=not is_words, min_width=longest)
    for row in rows:
        made.add_row(*row)
    return made


def facts(rows: Iterable[Sequence[str]]) -> Table:
    """Rows without headings."""
    made = _grid(show_header=False)
    for row in rows:
        made.add_row(*row)
    return made


def _grid(**looks: str | bool) -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), **looks)  # type: ignore[arg-type]


def _is_number(cell: str) -> bool:
    try:
        float(cell.rstrip("%"))
    except ValueError:
        return cell == "-"
    return True
