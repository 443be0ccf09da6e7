"""Labels: what stands in a box, where it fits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from weft.draw.grid import usual_shortest
from weft.draw.marks import Mark
from weft.draw.palette import HATCHED, Palette, ink, shade
from weft.draw.svg.boxes import SEAM, Box
from weft.draw.svg.elements import edge, group, text, width_of
from weft.draw.svg.frame import Frame
from weft.draw.view import View
from weft.ir.kinds import Kind
from weft.timeline import Timeline

LARGEST, MODEST, SMALLEST = 11.0, 8.5, 6.5
ROUNDING = 0.01
PADDING = 3.0  # both sides together
OF_ROW, OF_BOX = 0.62, 0.85  # of the height: usually, and at most


@dataclass(frozen=True, slots=True)
class Labels:
    """One size and one form for all labels of a picture; `longest` fits, or none do."""

    size: float
    words: Callable[[Mark], str]
    longest: Mark

    def drawn(self, boxes: Iterable[Box], palette: Palette) -> Iterator[str]:
        """The labels that fit, those of one ink in a group."""
        by_ink: defaultdict[tuple[str, str | None], list[str]] = defaultdict(list)
        for box in boxes:
            label = self._label(box)
            if label is not None:
                background = shade(box.mark, palette)
                halo = background.code if box.mark.kind in HATCHED else None
                by_ink[ink(background).code, halo].append(label)
        for (colour, halo), labels in by_ink.items():
            yield group(labels, fill=colour, **edge(halo))

    def _label(self, box: Box) -> str | None:
        """The fullest form for which there is room, as large as the box allows."""
        for words, below, width in self._forms(box.mark):
            room = (box.width - PADDING + ROUNDING) / width
            size = min(self.size, OF_BOX * box.height, room)
            if size >= SMALLEST:
                x, y = box.x + box.width / 2, box.y + box.height / 2 + 0.35 * size
                own = None if size == self.size else size
                return text(words, x, y, subscript=below, font_size=own)
        return None

    def _forms(self, mark: Mark) -> Iterator[tuple[str, str, float]]:
        """Words, what stands below them, and how wide that is at size 1.

        With the version, without it, and of a part of a layer its letter alone. As wide as the
        longest, so that labels do not come and go with their digits.
        """
        words = self.words(mark)
        for below in dict.fromkeys((version_of(mark), "")):
            own, longest = (
                width_of(label, 1.0, subscript=below) for label in (words, self.words(self.longest))
            )
            yield words, below, own if mark.number == "" else max(own, longest)
        if mark.part is not None:
            yield mark.letter, "", width_of(mark.letter, 1.0)


def labels(timeline: Timeline, view: View, frame: Frame) -> Labels:
    """As large as an ordinary short action allows; letters only where they fit there too."""
    room = usual_shortest(timeline) * frame.per_second - SEAM - PADDING
    most = min(LARGEST, OF_ROW * min(row.height for row in frame.rows))
    longest = longest_mark(timeline, view)
    for words in (_full, _short):
        width = width_of(words(longest), 1.0, subscript=version_of(longest))
        if min(most, room / width) >= SMALLEST:
            return Labels(min(most, room / width), words, longest)
    return Labels(max(min(most, MODEST), SMALLEST), _short, longest)


def full_labels(timeline: Timeline, view: View, frame: Frame) -> Labels:
    """The same with letters wherever they fit, though most actions may be too short for them."""
    size = min(LARGEST, OF_ROW * min(row.height for row in frame.rows))
    return Labels(size, _full, longest_mark(timeline, view))


def ideal_width(timeline: Timeline, view: View) -> float:
    """How wide an ordinary short action must be for the largest labels."""
    longest = longest_mark(timeline, view)
    return width_of(longest.name, LARGEST, subscript=version_of(longest)) + PADDING + SEAM


def longest_mark(timeline: Timeline, view: View) -> Mark:
    """A mark as long as any, but for spans."""
    actions = timeline.program.actions
    newest = int(actions.version[actions.kind <= Kind.R].max(initial=0))
    last = int(actions.microbatch.max(initial=0)) + view.count_from
    places = max(len(held) for held in timeline.program.placement.held)
    return Mark(Kind.F, last, place=places - 1, version=newest if newest > 0 else None)


def version_of(mark: Mark) -> str:
    return "" if mark.version is None else str(mark.version)


def _full(mark: Mark) -> str:
    return mark.name


def _short(mark: Mark) -> str:
    return mark.number or mark.letter
