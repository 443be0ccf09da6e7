"""Drawing: a Timeline as a picture in the terminal, in SVG or PNG, or as a trace for Perfetto.

Every kind of picture shares views, marks, palettes, legends and captions.
"""

from weft.draw.look import Look
from weft.draw.notebook import show
from weft.draw.perfetto import to_perfetto
from weft.draw.png import to_png
from weft.draw.svg import to_svg
from weft.draw.terminal import coloured, plain
from weft.draw.view import View
from weft.draw.window import Window

__all__ = ["Look", "View", "Window", "coloured", "plain", "show", "to_perfetto", "to_png", "to_svg"]
