"""Pictures: what the options ask for, and the files that pictures go to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from weft.cli.files import check_folder, write
from weft.cli.looks import Looks
from weft.cli.progress import working
from weft.draw import Look, View, Window, plain, to_png, to_svg
from weft.draw.bands import BandsOf
from weft.draw.look import LIGHT, THEMES
from weft.draw.palette import PALETTES
from weft.draw.size import FREE, Size
from weft.errors import InputError
from weft.timeline import Timeline

LETTERS = 120  # columns of a picture in a .txt

Writer: TypeAlias = Callable[[Timeline, View, Look], str | bytes]


def view_of(looks: Looks, bands_of: BandsOf) -> View:
    """What of a timeline is drawn."""
    return View(
        bands_of=bands_of,
        only=looks.only,
        window=Window(*looks.window) if looks.window else None,
        phases=looks.phases,
        count_from=looks.count_from,
        palette=PALETTES[looks.palette],
    )


def look_of(looks: Looks) -> Look:
    """How it is drawn; refused where there is no file to draw it in."""
    suffix = looks.output.suffix.lower() if looks.output else ""
    if looks.output and suffix not in WRITERS:
        endings = ", ".join(WRITERS)
        raise InputError(f"{looks.output}: a picture's file ends in one of {endings}")
    if looks.output:
        check_folder(looks.output)
    styled = [("--size", looks.size), ("--theme", looks.theme), ("--memory", looks.has_memory)]
    for flag, is_given in styled:
        if is_given and suffix not in (".svg", ".png"):
            raise InputError(f"{flag} is for a picture in a file; add -o FILE.svg or FILE.png")
    selected = [
        ("--only", looks.only),
        ("--window", looks.window),
        ("--phases", looks.phases is not None),
        ("--count-from", looks.count_from),
    ]
    for flag, value in selected:
        if value and suffix == ".html":
            raise InputError(f"a page shows all of a timeline; leave out {flag}")
        if value and looks.phases is not None and flag in ("--only", "--window"):
            raise InputError(f"--phases says what is shown; leave out {flag}")
    return Look(
        size=Size.of(looks.size) if looks.size else FREE,
        theme=THEMES[looks.theme] if looks.theme else LIGHT,
        has_memory=looks.has_memory,
    )


def write_picture(output: Path, timeline: Timeline, view: View, look: Look) -> None:
    """A picture in the form that the name of its file ends in."""
    with working("drawing"):
        content = WRITERS[output.suffix.lower()](timeline, view, look)
    write(output, content)


def _svg(timeline: Timeline, view: View, look: Look) -> str:
    return to_svg(timeline, view=view, look=look)


def _png(timeline: Timeline, view: View, look: Look) -> bytes:
    return to_png(to_svg(timeline, view=view, look=look), zoom=look.size.zoom)


def _text(timeline: Timeline, view: View, look: Look) -> str:
    return plain(timeline, width=LETTERS, view=view) + "\n"


def _page(timeline: Timeline, view: View, look: Look) -> str:
    from weft.web import page  # which no other picture needs

    palette = next(name for name, known in PALETTES.items() if known is view.palette)
    return page([timeline], options={"palette": palette})


WRITERS: dict[str, Writer] = {".svg": _svg, ".png": _png, ".txt": _text, ".html": _page}
