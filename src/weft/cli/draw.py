"""`weft draw`: a timeline in the terminal or in a file, or the lanes as plain text."""

from __future__ import annotations

import click

from weft.cli.asked import Asked, asked
from weft.cli.help import Sectioned
from weft.cli.looks import Looks, looking
from weft.cli.options import count
from weft.cli.output import has_colour, screen, show_picture
from weft.cli.pictures import look_of, view_of, write_picture
from weft.draw import View, coloured, plain
from weft.draw.bands import devices, streams
from weft.errors import InputError
from weft.notation import plain as plain_lanes
from weft.timeline import Timeline


@click.command("draw", cls=Sectioned)
@asked
@count(
    "--width",
    metavar="COLUMNS",
    least=20,
    most=10_000,
    help="Columns to fill.  [default: the terminal's, or 120]",
)
@click.option("--color/--no-color", "is_coloured", default=None, help="Colours, or letters alone.")
@click.option(
    "--streams",
    "has_streams",
    is_flag=True,
    help="Three rows for each device: computation, communication, offload.",
)
@click.option("--text", "is_text", is_flag=True, help="A line of actions for each device, to diff.")
@looking
def command(
    asked: Asked,
    width: int | None,
    is_coloured: bool | None,
    has_streams: bool,
    is_text: bool,
    looks: Looks,
) -> None:
    """Draw the timeline of schedule NAME, or of a program in the file NAME.

    \b
      $ weft draw 1f1b -d 4 -n 4
      0 F0 F1 F2 F3 ..................B0    ...B1    ...B2    ...B3    |
      1 ...F0 F1 F2 ............B0    F3 B1    ...B2    ...B3    ......|
      2 ......F0 F1 ......B0    F2 B1    F3 B2    ...B3    ............|
      3 .........F0 B0    F1 B1    F2 B2    F3 B3    ..................|

    One row for each device, time to the right. F0 is the forward of microbatch 0, B its
    backward, I and W the two halves of a backward; a prime marks a device's second stage, and
    F1|B0 two actions in one slot.

    \b
      $ weft draw 1f1b -d 2 -n 2 --text
      F0 F1 B0 B1
      F0 B0 F1 B1

    \b
      $ weft draw 1f1b -d 4 -n 8 -o 1f1b.svg --size 180mm      for a paper
      $ weft draw zbv -d 4 -n 8 -o zbv.png --theme dark        for a slide
      $ weft draw zbv -d 8 -n 32 -o zbv.html                   to explore in a browser
      $ weft draw 1f1b -d 4 -n 8 --only 3 --window 3:9 --count-from 1
      3 F1 B1    F2 B2    |

    SVG is text and lines that papers and browsers keep sharp; PNG needs the extra `png`. Their
    hatching tells weight gradients from the rest without colour. HTML is one page that needs
    nothing else: zoom, causes of idle time, memory, critical path, search, export.

    \b
      $ weft draw zb-h1 -d 8 -n 16 --model gpt-6.2b --device a100
      $ weft draw kimi-k2 -d 4 -k 2 -n 8 --streams
      $ weft draw kimi-k2 -d 4 -k 2 -n 8 --streams --phases 3

    With --streams pairs are cut into attention, dispatch, experts and combine (A D E C, lower
    case on the way back), what is saved is offloaded (O) and loaded back (L), and P is a send.

    Times of a model on a device are in seconds. What needs more memory than a device has is
    drawn with a warning; only `weft verify` refuses it.
    """
    look = look_of(looks)
    if is_text and looks != Looks():
        raise InputError("--text is the whole program, as it is numbered; leave out the picture")
    timeline = asked.in_streams() if has_streams else asked.proved()[0]
    view = view_of(looks, streams if has_streams else devices)
    if looks.output:
        write_picture(looks.output, timeline, view, look)
    elif is_text:
        print(plain_lanes(timeline.program))
    else:
        _show(timeline, view, width, is_coloured=is_coloured)


def _show(timeline: Timeline, view: View, width: int | None, *, is_coloured: bool | None) -> None:
    console = screen(is_coloured=is_coloured)
    columns = width or console.width
    if has_colour(console):
        show_picture(console, coloured(timeline, width=columns, view=view))
    else:
        print(plain(timeline, width=columns, view=view))
