"""Drawing: a Timeline as a picture in the terminal, or as a trace for Perfetto.

Every kind of picture shares marks, palette and captions.
"""

from weft.draw.perfetto import to_perfetto
from weft.draw.terminal import coloured, plain

__all__ = ["coloured", "plain", "to_perfetto"]
