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
from typing import NamedTuple

from weft.draw.caption import number
from weft.draw.look import LIGHT, Theme
from weft.draw.scatter import Dot, Scatter
from weft.draw.svg.elements import FONT, element, group, rectangle, text, width_of
from weft.draw.units import round_times

WIDTH, HEIGHT = 760.0, 440.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 24.0, 56.0, 52.0
SIZE, TITLE, RADIUS = 12.0, 15.0, 4.0
TICKS = 56.0  # between numbers of an axis, at least
BESIDE = 7.0  # from a dot to its name
SCHEDULE, LINE = "#0072b2", "#d55e00"


class _Box(NamedTuple):
    """Where words are, so that others keep away."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


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
        group(_names(scatter, axes), fill=theme.text.code),
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
        yield text("all that a device has", x - 6, TOP + 12, text_anchor="end")


def _line(scatter: Scatter, axes: _Axes) -> Iterator[str]:
    dots = sorted((dot for dot in scatter.shown if dot.is_joined), key=lambda dot: dot.bytes)
    if len(dots) > 1:
        path = "L".join(f"{axes.x(dot.bytes):.1f} {axes.y(dot.seconds):.1f}" for dot in dots)
        yield element("path", d=f"M{path}", stroke=LINE, stroke_width=2, fill="none")


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
    taken = [_around(axes, dot) for dot in scatter.shown if not dot.is_joined]
    best = scatter.schedules.best
    others = [dot for dot in scatter.shown if not dot.is_joined and dot not in best]
    for dot in (*best, *others):
        name = _name(scatter, dot)
        for box, anchor in _places(axes, dot, name):
            is_inside = box.left > LEFT and box.right < WIDTH - RIGHT
            if is_inside and not any(box.meets(other) for other in taken):
                taken.append(box)
                x = box.left if anchor == "start" else box.right
                yield text(name, x, box.bottom - 3, text_anchor=anchor)
                break


def _name(scatter: Scatter, dot: Dot) -> str:
    """Its own, and its memory where the axis does not show that."""
    _, size = scatter.units
    return f"{dot.name}, {size.amount(dot.bytes)}" if dot.bytes > scatter.edge else dot.name


def _around(axes: _Axes, dot: Dot) -> _Box:
    x, y = axes.place(dot)
    return _Box(x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS)


def _places(axes: _Axes, dot: Dot, name: str) -> Iterator[tuple[_Box, str]]:
    """Where the name of a dot may be: to its right or left, or a little above or below."""
    (x, y), width = axes.place(dot), width_of(name, SIZE)
    for shift in (0.0, -10.0, 10.0):
        top, bottom = y - SIZE / 2 - 2 + shift, y + SIZE / 2 + 2 + shift
        yield _Box(x + BESIDE, top, x + BESIDE + width, bottom), "start"
        yield _Box(x - BESIDE - width, top, x - BESIDE, bottom), "end"


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
        yield text(f"{scatter.left_out} far slower ones left out", LEFT + 300, y)
