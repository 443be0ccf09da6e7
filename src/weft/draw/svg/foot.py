"""The foot: what the colours mean, side by side on as many lines as it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from weft.draw.legend import Entry, Sign
from weft.draw.look import Look
from weft.draw.marks import Mark
from weft.draw.palette import HATCHED, Palette, ink, shade
from weft.draw.svg.boxes import MOMENT, fill
from weft.draw.svg.elements import edge, rectangle, text, width_of
from weft.draw.svg.frame import LINE, MARGIN, SIZE, Frame
from weft.draw.svg.levels import LEVELS
from weft.draw.svg.words import SPACE, flowed
from weft.timeline import Timeline

SWATCH = 13.0  # height of a mark
BESIDE = 5.0  # from a sign to its meaning


class Phrase(NamedTuple):
    """A sign, drawn from its upper left corner, and what it means."""

    width: float
    sign: Callable[[float, float], Iterator[str]]
    meaning: str

    @property
    def whole_width(self) -> float:
        return self.width + BESIDE + width_of(self.meaning, SIZE)


def foot(
    entries: Iterable[Entry], timeline: Timeline, palette: Palette, look: Look, width: float
) -> list[list[Phrase]]:
    """The legend, in lines."""
    phrases = [_phrase(entry, palette) for entry in entries]
    phrases.append(_plain(look.theme.idle.code, 1.0, "idle"))
    if look.has_memory:
        used = {category for curves in timeline.memory.curves for category in curves}
        for category, strength in LEVELS.items():
            if category in used:
                words = f"memory: {category.value}"
                phrases.append(_plain(look.theme.level.code, strength, words))
    sized = [(phrase.whole_width, phrase) for phrase in phrases]
    return [[phrase for _, phrase in line] for line in flowed(sized, width - 2 * MARGIN)]


def foot_height(lines: list[list[Phrase]]) -> float:
    return len(lines) * (LINE + 3) + MARGIN


def drawn_foot(lines: list[list[Phrase]], frame: Frame) -> Iterator[str]:
    """Every phrase in its place."""
    y = frame.height - foot_height(lines) + 2
    for line in lines:
        x = MARGIN
        for phrase in line:
            yield from phrase.sign(x, y)
            yield text(phrase.meaning, x + phrase.width + BESIDE, y + SWATCH - 3)
            x += phrase.whole_width + SPACE
        y += LINE + 3


def _plain(colour: str, strength: float, meaning: str) -> Phrase:
    def sign(x: float, y: float) -> Iterator[str]:
        yield rectangle(x, y, SWATCH, SWATCH, fill=colour, fill_opacity=strength)

    return Phrase(SWATCH, sign, meaning)


def _phrase(entry: Entry, palette: Palette) -> Phrase:
    match entry.sign:
        case Sign.MARKS:
            return _marks(entry, palette)
        case Sign.PAIR:
            return _pair(entry, palette)
        case Sign.MOMENT:
            return _moment(entry, palette)
        case Sign.VERSION:
            return _version(entry)


def _marks(entry: Entry, palette: Palette) -> Phrase:
    widths = [max(SWATCH + 3, width_of(mark.name, SIZE) + 6) for mark in entry.marks]

    def sign(x: float, y: float) -> Iterator[str]:
        for mark, width in zip(entry.marks, widths, strict=True):
            yield rectangle(x, y, width - 1, SWATCH, fill=fill(mark, palette))
            yield _name(mark, x + (width - 1) / 2, y + SWATCH - 3, palette)
            x += width

    return Phrase(sum(widths), sign, entry.meaning)


def _pair(entry: Entry, palette: Palette) -> Phrase:
    half = SWATCH / 2

    def sign(x: float, y: float) -> Iterator[str]:
        for place, mark in enumerate(entry.marks):
            yield rectangle(x, y + place * half, 2 * SWATCH, half, fill=fill(mark, palette))

    return Phrase(2 * SWATCH, sign, entry.meaning)


def _moment(entry: Entry, palette: Palette) -> Phrase:
    def sign(x: float, y: float) -> Iterator[str]:
        yield rectangle(x + 1, y, MOMENT, SWATCH, fill=fill(entry.marks[0], palette))

    return Phrase(MOMENT + 2, sign, entry.meaning)


def _version(entry: Entry) -> Phrase:
    def sign(x: float, y: float) -> Iterator[str]:
        yield text("F1", x, y + SWATCH - 3, subscript="2")

    return Phrase(width_of("F1", SIZE, subscript="2"), sign, entry.meaning)


def _name(mark: Mark, x: float, y: float, palette: Palette) -> str:
    background = shade(mark, palette)
    halo = background.code if mark.kind in HATCHED else None
    return text(mark.name, x, y, fill=ink(background).code, text_anchor="middle", **edge(halo))
