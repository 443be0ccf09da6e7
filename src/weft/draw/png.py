"""PNG: a picture in pixels, rendered from its SVG by resvg, in a font that Weft carries."""

from __future__ import annotations

from importlib.resources import as_file, files

from weft.draw.size import PER_INCH
from weft.errors import InputError

FAMILY = "Aileron"
BOLD, OUTLINED = 'font-weight="600"', 'stroke="currentColor" stroke-width="0.5"'


def to_png(svg: str, *, zoom: float = 1.0) -> bytes:
    """An SVG document as PNG, `zoom` times as large."""
    try:
        import resvg_py
    except ImportError:
        raise InputError(
            "PNG needs the package resvg-py: pip install 'weft[png]' (SVG needs nothing)"
        ) from None
    with as_file(files("weft.draw").joinpath("fonts", "aileron.ttf")) as font:
        return bytes(
            resvg_py.svg_to_bytes(
                svg_string=svg.replace(BOLD, OUTLINED),  # as the font has no bold letters
                zoom=zoom,
                dpi=PER_INCH,
                font_files=[str(font)],
                font_family=FAMILY,
                sans_serif_family=FAMILY,
            )
        )
