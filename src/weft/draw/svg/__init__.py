"""SVG: a Timeline as a picture for papers and slides.

Plain SVG 1.1 without style sheets or scripts: text stays text, every colour is an attribute, and
the names of its patterns say what they are, so that several pictures may share a document.
"""

from weft.draw.svg.picture import to_svg

__all__ = ["to_svg"]
