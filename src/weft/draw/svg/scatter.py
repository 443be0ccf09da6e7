"""Scatters as SVG: memory to the right, time upwards, the best dots with their names.

┌ title ─────────────────────────────┐
│ s │ ·                 ┆            │
│   │  ╲   ·   v-min    ┆ capacity   │
│   │   ╲___·____· zbv  ┆   gpipe >  │
│   └─────────────────────────────── │
│      10    20    30    GiB         │
└────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, pairwise
from math import ceil, dist
from typing import NamedTuple, TypeAlias

from weft.draw.caption import number
from weft.draw.look import LIGHT, Theme
from weft.draw.scatter import Dot, Scatter
from weft.draw.svg.elements import FONT, edge, element, group, rectangle, text, width_of
from weft.draw.units import round_times

WIDTH, HEIGHT = 760.0, 440.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 24.0, 56.0, 52.0
SIZE, TITLE, RADIUS = 12.0, 15.0, 4.0
TICKS = 56.0  # between numbers of an axis, at least
BESIDE = 7.0  # from a dot to its name
DIRECTIONS = ((-0.8, 0.6), (0.8, -0.6), (0.8, 0.6), (-0.8, -0.6))  # to names that are further away
LIMIT = "all that a device has"
SCHEDULE, LINE = "#0072b2", "#d55e00"


Corner: TypeAlias = tuple[float, float]


class _Box(NamedTuple):
    """Where words are, so that others keep away."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def is_inside(self) -> bool:
        """Whether it is between the axes."""
        is_across = self.left > LEFT and self.right < WIDTH - RIGHT
        return is_across and self.top > TOP and self.bottom < HEIGHT - BOTTOM

    def meets(self, other: _Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


class _Place(NamedTuple):
    """Where a name may be, which end of it is at its dot, and where a thin line leads to it."""

    box: _Box
    anchor: str
    leader: tuple[Corner, Corner] | None = None

    @property
    def x(self) -> float:
        left, _, right, _ = self.box
        return {"start": left, "end": right}.get(self.anchor, (left + right) / 2)

    @property
    def boxes(self) -> list[_Box]:
        """What others keep away from."""
        return [self.box, *(_along(*self.leader) if self.leader else ())]


class _Axes(NamedTuple):
    """From bytes and seconds to places on the paper; beyond its edge, to the right end."""

    bytes: tuple[float, float]
    seconds: tuple[float, float]
    edge: float

    def place(self, dot: Dot) -> tuple[float, float]:
        """Where a dot is."""
        is_beyond = dot.bytes > self.edge
        return WIDTH - RIGHT - RADIUS if is_beyond else self.x(dot.bytes), self.y(dot.seconds)

    def x(self, value: float) -> float:
        low, high = self.bytes
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self.seconds
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)


def scatter_to_svg(scatter: Scatter, theme: Theme = LIGHT) -> str:
    """The scatter as an SVG document."""
    axes = _axes(scatter)
    content = [
        rectangle(0, 0, WIDTH, HEIGHT, fill=theme.paper.code),
        text(scatter.title, LEFT, TITLE + 10, font_size=TITLE, font_weight="600",
             fill=theme.text.code),
        group(_ticks(scatter, axes), fill=theme.faint.code, color=theme.faint.code),
        group(_limit(scatter, axes), fill=theme.faint.code, color=theme.faint.code),
        *_line(scatter, axes),
        group(_dots(scatter, axes)),
        group(_names(scatter, axes), fill=theme.text.code, color=theme.text.code,
              **edge(theme.paper.code)),
        group(_legend(scatter), fill=theme.text.code),
    ]  # fmt: skip
    return (
        element(
            "svg",
            "\n",
            *(f"{part}\n" for part in content if part),
            xmlns="http://www.w3.org/2000/svg",
            width=WIDTH,
            height=HEIGHT,
            viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
            role="img",
            font_family=FONT,
            font_size=SIZE,
        )
        + "\n"
    )


def _axes(scatter: Scatter) -> _Axes:
    """A little beyond all dots; the limit is shown where it is near."""
    edge = scatter.edge
    sizes = [min(dot.bytes, edge) for dot in scatter.shown]
    if scatter.limit <= 1.3 * edge:
        sizes.append(scatter.limit)
    return _Axes(_range(sizes), _range([dot.seconds for dot in scatter.shown]), edge)


def _range(values: list[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = 0.08 * (high - low) or 0.1 * high or 1.0
    return max(0.0, low - 2 * margin), high + margin


def _ticks(scatter: Scatter, axes: _Axes) -> Iterator[str]:
    time, size = scatter.units
    floor, left = HEIGHT - BOTTOM, LEFT
    line = {"stroke": "currentColor", "stroke_opacity": 0.25, "fill": "none"}
    for value in _round(axes.bytes, size.size, WIDTH - LEFT - RIGHT):
        x = axes.x(value * size.size)
        yield element("path", d=f"M{x:.1f} {TOP:.1f}V{floor + 3:.1f}", **line)
        yield text(number(value), x, floor + 16, text_anchor="middle")
    for value in _round(axes.seconds, time.size, HEIGHT - TOP - BOTTOM):
        y = axes.y(value * time.size)
        yield element("path", d=f"M{left - 3:.1f} {y:.1f}H{WIDTH - RIGHT:.1f}", **line)
        yield text(number(value), left - 7, y + 4, text_anchor="end")
    yield text(f"memory of the fullest device, {size.name}", WIDTH - RIGHT, floor + 34,
               text_anchor="end")  # fmt: skip
    yield text(f"time of a step, {time.name}", 10, TOP - 6)


def _round(span: tuple[float, float], unit: float, room: float) -> list[float]:
    low, high = (value / unit for value in span)
    return round_times(low, high, least=TICKS * (high - low) / room)


def _limit(scatter: Scatter, axes: _Axes) -> Iterator[str]:
    if axes.bytes[0] <= scatter.limit <= axes.bytes[1]:
        x = axes.x(scatter.limit)
        yield element(
            "path",
            d=f"M{x:.1f} {TOP:.1f}V{HEIGHT - BOTTOM:.1f}",
            stroke="currentColor",
            stroke_dasharray="5 4",
            fill="none",
        )
        yield text(LIMIT, x - 6, TOP + 12, text_anchor="end")


def _line(scatter: Scatter, axes: _Axes) -> Iterator[str]:
    corners = _corners(scatter, axes)
    if len(corners) > 1:
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in corners)
        yield element("path", d=f"M{path}", stroke=LINE, stroke_width=2, fill="none")


def _corners(scatter: Scatter, axes: _Axes) -> list[Corner]:
    """Where the line goes through."""
    dots = sorted((dot for dot in scatter.shown if dot.is_joined), key=lambda dot: dot.bytes)
    return [(axes.x(dot.bytes), axes.y(dot.seconds)) for dot in dots]


def _dots(scatter: Scatter, axes: _Axes) -> Iterator[str]:
    for dot in scatter.shown:
        x, y = axes.place(dot)
        radius = RADIUS - 1 if dot.is_joined else RADIUS
        look = {"fill": LINE if dot.is_joined else SCHEDULE}
        name = element("title", dot.name)
        if dot.bytes > axes.edge:
            yield element("path", name, d=_arrow(x, y), **look)
        else:
            yield element("circle", name, cx=x, cy=y, r=radius, **look)


def _arrow(x: float, y: float) -> str:
    """The path of a triangle that points to the right."""
    left, right = x - RADIUS, x + RADIUS
    return f"M{left:.1f} {y - RADIUS:.1f}L{right:.1f} {y:.1f}L{left:.1f} {y + RADIUS:.1f}Z"


def _names(scatter: Scatter, axes: _Axes) -> Iterator[str]:
    """The best dots first, then others while there is room; the line has its name in the legend."""
    taken = [*(_around(axes, dot) for dot in scatter.shown), *_along_line(scatter, axes)]
    taken.extend(_beside_limit(scatter, axes))
    best = scatter.schedules.best
    others = [dot for dot in scatter.shown if not dot.is_joined and dot not in best]
    names: list[_Box] = []
    for dot in (*best, *others):
        name = _name(scatter, dot)
        far = _far_places(axes, dot, name) if dot in best else ()
        for place in chain(_places(axes, dot, name), far):
            is_free = not any(place.box.meets(one) for one in taken)
            if place.box.is_inside and is_free and not _crosses(place, names):
                taken.extend(place.boxes)
                names.append(place.box)
                yield from _named(name, place)
                break


def _named(name: str, place: _Place) -> Iterator[str]:
    if place.leader is not None:
        (x, y), (end_x, end_y) = place.leader
        look = {"stroke": "currentColor", "stroke_opacity": 0.5, "fill": "none"}
        path = f"M{x:.1f} {y:.1f}L{end_x:.1f} {end_y:.1f}"
        yield element("path", d=path, stroke_width=1, **look)
    yield text(name, place.x, place.box.bottom - 3, text_anchor=place.anchor)


def _crosses(place: _Place, names: list[_Box]) -> bool:
    """Whether its leader runs through a name."""
    return any(part.meets(name) for part in place.boxes[1:] for name in names)


def _name(scatter: Scatter, dot: Dot) -> str:
    """Its own, and its memory where the axis does not show that."""
    _, size = scatter.units
    return f"{dot.name}, {size.amount(dot.bytes)}" if dot.bytes > scatter.edge else dot.name


def _around(axes: _Axes, dot: Dot) -> _Box:
    x, y = axes.place(dot)
    return _Box(x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS)


def _along_line(scatter: Scatter, axes: _Axes) -> Iterator[_Box]:
    """Small boxes on all of the line."""
    for start, end in pairwise(_corners(scatter, axes)):
        yield from _along(start, end)


def _along(start: Corner, end: Corner) -> Iterator[_Box]:
    """Small boxes, one after the other, between two corners."""
    steps, half = ceil(dist(start, end) / RADIUS), RADIUS / 2
    for step in range(steps):
        x, y = (a + (b - a) * step / steps for a, b in zip(start, end, strict=True))
        yield _Box(x - half, y - half, x + half, y + half)


def _beside_limit(scatter: Scatter, axes: _Axes) -> Iterator[_Box]:
    """The line of the limit, and its words."""
    if axes.bytes[0] <= scatter.limit <= axes.bytes[1]:
        x = axes.x(scatter.limit)
        yield _Box(x - 6 - width_of(LIMIT, SIZE), TOP, x, TOP + SIZE + 2)
        yield _Box(x - 1, TOP, x + 1, HEIGHT - BOTTOM)


def _places(axes: _Axes, dot: Dot, name: str) -> Iterator[_Place]:
    """Where the name of a dot may be: to its right or left, a little above or below, or there."""
    (x, y), width = axes.place(dot), width_of(name, SIZE)
    for shift in (0.0, -10.0, 10.0):
        top, bottom = y - SIZE / 2 - 2 + shift, y + SIZE / 2 + 2 + shift
        yield _Place(_Box(x + BESIDE, top, x + BESIDE + width, bottom), "start")
        yield _Place(_Box(x - BESIDE - width, top, x - BESIDE, bottom), "end")
    for shift in (-14.0, 14.0):
        top, bottom = y - SIZE / 2 - 2 + shift, y + SIZE / 2 + 2 + shift
        yield _Place(_Box(x - width / 2, top, x + width / 2, bottom), "middle")


def _far_places(axes: _Axes, dot: Dot, name: str) -> Iterator[_Place]:
    """Where a name may be with a thin line to it, the nearest first."""
    (x, y), width = axes.place(dot), width_of(name, SIZE)
    for distance in range(24, 160, 8):
        for right, down in DIRECTIONS:
            end = x + right * distance, y + down * distance
            left = end[0] + 3 if right > 0 else end[0] - 3 - width
            box = _Box(left, end[1] - SIZE / 2 - 2, left + width, end[1] + SIZE / 2 + 2)
            yield _Place(box, "start" if right > 0 else "end", ((x, y), end))


def _legend(scatter: Scatter) -> Iterator[str]:
    y = HEIGHT - 12
    yield element("circle", cx=LEFT + 4, cy=y - 4, r=RADIUS, fill=SCHEDULE)
    yield text("schedules", LEFT + 14, y)
    if any(dot.is_joined for dot in scatter.shown):
        yield element("circle", cx=LEFT + 94, cy=y - 4, r=RADIUS - 1, fill=LINE)
        yield text("synthesised", LEFT + 104, y)
    if scatter.beyond:
        yield element("path", d=_arrow(LEFT + 204, y - 4), fill=SCHEDULE)
        yield text("hold more", LEFT + 214, y)
    if scatter.left_out:
        yield text(f"{scatter.left_out} far slower left out", LEFT + 300, y)
