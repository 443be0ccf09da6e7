"""Notebooks: a Timeline that ends a cell shows as its picture.

    timeline                                    # the picture
    weft.show(timeline, view=View(only=(0,)))   # another one

`import weft` registers it with the notebook that it runs in, `%load_ext weft` with any IPython. A
Timeline itself knows nothing of pictures.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.draw.look import PLAIN, Look
from weft.draw.svg import to_svg
from weft.draw.terminal import plain
from weft.draw.view import WHOLE, View
from weft.timeline import Timeline

WIDTH = 100  # columns, where a notebook shows text alone


@dataclass(frozen=True, slots=True)
class Picture:
    """A timeline as a notebook shows it; `svg` and `text` for all else."""

    timeline: Timeline
    view: View = WHOLE
    look: Look = PLAIN

    @property
    def svg(self) -> str:
        return to_svg(self.timeline, view=self.view, look=self.look)

    @property
    def text(self) -> str:
        return plain(self.timeline, width=WIDTH, view=self.view)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """What notebooks ask for: they show the first form that they can."""
        return {"image/svg+xml": self.svg, "text/plain": self.text}


def show(timeline: Timeline, *, view: View = WHOLE, look: Look = PLAIN) -> Picture:
    """The picture of a timeline, for the end of a cell."""
    return Picture(timeline, view, look)


def bundle(timeline: Timeline, include: object = None, exclude: object = None) -> dict[str, str]:
    """The forms of a bare timeline."""
    return Picture(timeline)._repr_mimebundle_(include, exclude)
