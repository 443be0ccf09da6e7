"""`weft draw`: a timeline in the terminal or in a file, or the lanes as plain text."""

from __future__ import annotations

from pathlib import Path

import click

from weft.cli.asked import asked, in_streams, lowered, timed
from weft.cli.help import Sectioned
from weft.cli.looks import Looks, looking
from weft.cli.measured import draw_measured
from weft.cli.options import Flag, option
from weft.cli.output import has_colour, screen, show_picture
from weft.cli.pictures import look_of, view_of, write_picture
from weft.draw import View, coloured, plain
from weft.draw.bands import devices, streams
from weft.errors import InputError
from weft.ir.program import Program
from weft.notation import plain as plain_lanes
from weft.notation import to_text
from weft.request import Request
from weft.request.values import Whole
from weft.timeline import Timeline


@click.command("draw", cls=Sectioned)
@asked
@option(
    Whole(least=20, most=10_000),
    "width",
    Flag("Columns to fill.  [default: the terminal's, or 120]", "COLUMNS"),
)
@click.option(
    "--color/--no-color",
    "is_coloured",
    default=None,
    help="Draw with colours, or with letters alone.",
)
@click.option(
    "--streams",
    "has_streams",
    is_flag=True,
    help="Draw three rows for each device: computation, communication, offload.",
)
@click.option(
    "--lowered",
    "is_lowered",
    is_flag=True,
    help="Draw what a run executes, in such rows: sends, sums, updates and copies too.",
)
@click.option(
    "--measured",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Draw slots of a run of `weft train` in such rows: what was predicted, what was measured.",
)
@click.option(
    "--text", "is_text", is_flag=True, help="Print a line of actions for each device, to diff."
)
@looking
def command(
    request: Request,
    width: int | None,
    is_coloured: bool | None,
    has_streams: bool,
    is_lowered: bool,
    measured: Path | None,
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

    A row for each device; time runs to the right. F0 is the forward of microbatch 0, B its
    backward, I and W the two halves of a backward; a prime marks a device's second stage, and
    F1|B0 two actions in one slot. Where primes have no room, a device's stages are F, f, Ḟ and ḟ.

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

    SVG stays sharp in papers and browsers; PNG needs the extra `png`. Weight gradients are
    hatched, to stand out without colour. HTML is one page that needs nothing else: zoom, causes
    of idle time, memory, critical path, search, export.

    \b
      $ weft draw zb-h1 -d 8 -n 16 --model gpt-6.2b --device a100
      $ weft draw kimi-k2 -d 4 -k 2 -n 8 --streams
      $ weft draw kimi-k2 -d 4 -k 2 -n 8 --streams --phases 3

    With --streams, pairs are cut into attention, dispatch, experts and combine (A D E C, lower
    case in the backward), what is saved is offloaded (O) and loaded back (L), and P is a send.

    \b
      $ weft draw chimera -d 4 -n 4 --lowered

    With --lowered it is the program that ranks walk, lane by lane: pairs run one after the other,
    sends (P) have lanes of their own, gradients of several copies of a stage are summed (S), and
    weights are updated (U). Whatever --recompute, --offload and --experts add is in it. With
    --text, it is a program that other commands read from a file.

    \b
      $ weft train --model moe-small --schedule kimi-k2 -d 2 -n 8 --steps 5 --out runs/k2
      $ weft draw kimi-k2 --streams --measured runs/k2
      $ weft draw kimi-k2 --streams --measured runs/k2 --phases 1 -o slots.svg

    With --measured, one slot of the warm-up, one of the steady state and one of the cool-down of
    a device (--phases, by default one in the middle), each as predicted and below that as
    measured in the step of median length, all on one time scale.

    With --model and --device, times are in seconds. What needs more memory than a device has is
    drawn with a warning; only `weft verify` refuses it.
    """
    if measured is not None:
        if is_lowered or is_text:
            raise InputError("--measured draws what a run did; leave out --lowered and --text")
        draw_measured(request, measured, looks, width, is_coloured=is_coloured)
        return
    look = look_of(looks)
    if is_text and looks != Looks():
        raise InputError("--text is the whole program, as it is numbered; leave out the picture")
    if is_lowered and has_streams:
        raise InputError("--lowered has the rows of --streams, with what a run does; leave out one")
    if is_text and has_streams:
        raise InputError("--text prints what devices compute; give --lowered, leave out --streams")
    timeline = _timeline(request, has_streams=has_streams, is_lowered=is_lowered)
    view = view_of(looks, streams if has_streams or is_lowered else devices)
    if looks.output:
        write_picture(looks.output, timeline, view, look)
    elif is_text:
        print(_lanes(timeline.program, is_lowered=is_lowered))
    else:
        _show(timeline, view, width, is_coloured=is_coloured)


def _timeline(request: Request, *, has_streams: bool, is_lowered: bool) -> Timeline:
    if is_lowered:
        return lowered(request)
    return in_streams(request) if has_streams else timed(request)[0]


def _lanes(program: Program, *, is_lowered: bool) -> str:
    """A line for each device, or for each lane, as commands read them from a file."""
    return to_text(program).rstrip() if is_lowered else plain_lanes(program)


def _show(timeline: Timeline, view: View, width: int | None, *, is_coloured: bool | None) -> None:
    console = screen(is_coloured=is_coloured)
    columns = width or console.width
    if has_colour(console):
        show_picture(console, coloured(timeline, width=columns, view=view))
    else:
        print(plain(timeline, width=columns, view=view))
