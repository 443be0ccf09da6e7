"""Drawing: a Timeline as a picture, in the terminal for now.

Every kind of picture shares marks, palette and captions.
"""

from weft.draw.terminal import coloured, plain

__all__ = ["coloured", "plain"]
