"""Measured runs in a picture: slots of a device as predicted, and as `weft train` measured them."""

from __future__ import annotations

from pathlib import Path

from weft.cli.files import write
from weft.cli.looks import Looks
from weft.cli.output import has_colour, screen, show_picture
from weft.cli.pictures import LETTERS, look_of, view_of
from weft.cli.progress import working
from weft.draw import to_png
from weft.draw.bands import streams
from weft.draw.compared import Compared
from weft.draw.svg.compared import compared_to_svg
from weft.draw.terminal_compared import compared_coloured, compared_plain
from weft.errors import InputError
from weft.notation import read_timeline
from weft.request import Costs, Request
from weft.request.values import refuse

TIMELINES = ("predicted", "measured")


def draw_measured(
    request: Request, run: Path, looks: Looks, width: int | None, *, is_coloured: bool | None
) -> None:
    """Slots of a run in the terminal, or in a file."""
    look, view = look_of(looks), view_of(looks, streams)
    _refuse_looks(looks)
    compared = _compared(request, run, looks.phases)
    if looks.output is not None:
        with working("drawing"):
            match looks.output.suffix.lower():
                case ".txt":
                    content: str | bytes = compared_plain(compared, width=LETTERS, view=view) + "\n"
                case ".png":
                    svg = compared_to_svg(compared, view=view, look=look)
                    content = to_png(svg, zoom=look.size.zoom)
                case _:
                    content = compared_to_svg(compared, view=view, look=look)
        write(looks.output, content)
        return
    console = screen(is_coloured=is_coloured)
    columns = width or console.width
    if has_colour(console):
        show_picture(console, compared_coloured(compared, width=columns, view=view))
    else:
        print(compared_plain(compared, width=columns, view=view))


def _refuse_looks(looks: Looks) -> None:
    asked = {"only": looks.only, "window": looks.window, "memory": looks.has_memory}
    names = [name for name, value in asked.items() if value]
    refuse("--measured shows slots of one device, which --phases names", names)
    if looks.output is not None and looks.output.suffix.lower() == ".html":
        raise InputError("the page of a run is its page.html; slots go to .svg, .png or .txt")


def _compared(request: Request, run: Path, device: int | None) -> Compared:
    """Both timelines of a run of the schedule that is named; by default, of a device amid them."""
    is_plan = request.given is not None  # which has passes and costs of its own
    asked = [] if is_plan else [*request.sizes.asked, *request.passes.asked]
    refuse(f"{run} has the program of its run", asked)
    if request.costs != Costs() and not is_plan:
        raise InputError(f"{run} has what its run was predicted with; leave out the costs")
    files = [run / f"{name}.json" for name in TIMELINES]
    for file in files:
        if not file.is_file():
            raise InputError(
                f"{file} does not exist: name the folder of a run of `weft train` that has taken a"
                f" step"
            )
    predicted, measured = map(read_timeline, files)
    trained = measured.program.name.partition(" x ")[0]
    named = request.program.name if request.is_file else request.schedule.name
    if named != trained:
        raise InputError(f"{run} is a run of {trained}, not of {named}: draw {trained}")
    middle = measured.program.devices // 2
    return Compared(predicted, measured, middle if device is None else device)
