"""Pens: a row of columns in letters, in colours, or in half columns of colour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np
from rich.color import Color
from rich.style import Style
from rich.text import Text

from weft.draw.grid import IDLE, Cell, cells
from weft.draw.marks import Mark, MarksOf
from weft.draw.palette import SAFE, Colour, Palette, colour, ink, mixed
from weft.ir.actions import Index

LabelOf: TypeAlias = Callable[[Mark], str]
FormsOf: TypeAlias = Callable[[Mark], tuple[str, ...]]

DIM = Style(dim=True)


class Pen(Protocol):
    """Draws a row, and the signs that its legend and time axis need."""

    idle: str
    tick: str
    per_character: int  # columns of the grid in one character

    def row(self, columns: Index) -> Text:
        """A device's columns."""

    def swatch(self, mark: Mark) -> Text:
        """A mark for the legend."""

    def pair(self, first: Mark, second: Mark) -> Text:
        """A pair for the legend."""


class Letters:
    """`F0 F1 .....B0    |`: a label at the start of each cell, dots where a device is idle."""

    idle = "."
    tick = "|"
    per_character = 1

    def __init__(self, marks_of: MarksOf, label_of: LabelOf) -> None:
        self._marks_of = marks_of
        self._label_of = label_of

    def row(self, columns: Index) -> Text:
        return Text("".join(self._cell(cell) for cell in cells(columns))).append("|")

    def swatch(self, mark: Mark) -> Text:
        return Text(self._label_of(mark))

    def pair(self, first: Mark, second: Mark) -> Text:
        return Text(f"{self._label_of(first)}|{self._label_of(second)}")

    def _cell(self, cell: Cell) -> str:
        if cell.slot == IDLE:
            return self.idle * cell.width
        marks = self._marks_of(cell.slot)
        labels = [self._label_of(mark) for mark in marks]
        letters = [label[0] for label in labels]
        forms = ("|".join(labels), "|".join(letters), "&")
        return next(form for form in forms if len(form) <= cell.width).ljust(cell.width)


class _Coloured:
    """What both pens of colour share."""

    idle = "·"
    tick = "▏"

    def __init__(self, marks_of: MarksOf, palette: Palette = SAFE) -> None:
        self._marks_of = marks_of
        self._palette = palette

    def swatch(self, mark: Mark) -> Text:
        return Text(f" {mark.label} ", _on(self._colour(mark)))

    def pair(self, first: Mark, second: Mark) -> Text:
        return self._stacked(first, second, 3)

    def _stacked(self, above: Mark, below: Mark, width: int) -> Text:
        looks = Style(color=_rich(self._colour(above)), bgcolor=_rich(self._colour(below)))
        return Text("▀" * width, looks)

    def _colour(self, mark: Mark) -> Colour:
        return colour(mark, self._palette)


class Colours(_Coloured):
    """Cells of colour with a label in their middle: the longest of its forms that fits."""

    per_character = 1

    def __init__(self, marks_of: MarksOf, forms_of: FormsOf, palette: Palette = SAFE) -> None:
        super().__init__(marks_of, palette)
        self._forms_of = forms_of

    def row(self, columns: Index) -> Text:
        return Text("").join(self._cell(cell) for cell in cells(columns))

    def _cell(self, cell: Cell) -> Text:
        if cell.slot == IDLE:
            return Text(self.idle * cell.width, DIM)
        match self._marks_of(cell.slot):
            case (mark,):
                return self._side(mark, cell.width)
            case (first, second):
                return self._pair(first, second, cell.width)

    def _pair(self, first: Mark, second: Mark, width: int) -> Text:
        """The first to the left and above, the second to the right and below."""
        side = width // 3
        if not (self._label(first, side) and self._label(second, side)):
            side = 0
        middle = self._stacked(first, second, width - 2 * side)
        return Text.assemble(self._side(first, side), middle, self._side(second, side))

    def _side(self, mark: Mark, width: int) -> Text:
        return Text(self._label(mark, width).center(width), _on(self._colour(mark)))

    def _label(self, mark: Mark, width: int) -> str:
        return next((form for form in self._forms_of(mark) if len(form) <= width), "")


class HalfColumns(_Coloured):
    """Two half columns of colour to a character, without labels; each mixes `samples` columns."""

    def __init__(self, marks_of: MarksOf, palette: Palette = SAFE, *, samples: int) -> None:
        super().__init__(marks_of, palette)
        self.per_character = 2 * samples

    def row(self, columns: Index) -> Text:
        characters = -(-len(columns) // self.per_character)
        padded = np.full(characters * self.per_character, IDLE)
        padded[: len(columns)] = columns
        return Text("").join(map(self._character, padded.reshape(-1, self.per_character).tolist()))

    def _character(self, slots: list[int]) -> Text:
        if len(set(slots)) == 1 and slots[0] != IDLE:
            marks = self._marks_of(slots[0])
            return self._stacked(marks[0], marks[-1], 1)
        middle = len(slots) // 2
        left, right = self._mixed(slots[:middle]), self._mixed(slots[middle:])
        if left is None:
            return Text(self.idle, DIM) if right is None else Text("▐", Style(color=_rich(right)))
        background = None if right is None else _rich(right)
        return Text("▌", Style(color=_rich(left), bgcolor=background))

    def _mixed(self, slots: list[int]) -> Colour | None:
        """The mean of what fills half of it at least."""
        marks = [self._marks_of(slot) for slot in slots if slot != IDLE]
        if 2 * len(marks) < len(slots):
            return None
        return mixed([self._colour(mark) for slot in marks for mark in slot])


def _on(background: Colour) -> Style:
    return Style(color=_rich(ink(background)), bgcolor=_rich(background))


def _rich(chosen: Colour) -> Color:
    return Color.from_rgb(*chosen)
