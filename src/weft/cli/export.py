"""`weft export`: a program or its timeline, in a form that others read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click

from weft.cli.asked import asked_as_is
from weft.cli.files import check_folder, write
from weft.cli.help import Sectioned
from weft.cli.progress import working
from weft.draw import to_perfetto
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.lower import updates, wires
from weft.notation import to_json, to_text, to_torch_csv
from weft.request import Request
from weft.timeline import Timeline

PROGRAMS: dict[str, Callable[[Program], str]] = {
    "text": to_text,
    "json": to_json,
    "torch-csv": to_torch_csv,
}
TIMELINES: dict[str, Callable[[Timeline], str]] = {
    "timeline-json": to_json,
    "perfetto": to_perfetto,
}


@click.command("export", cls=Sectioned)
@asked_as_is
@click.option(
    "--format",
    "form",
    type=click.Choice([*PROGRAMS, *TIMELINES]),
    default="text",
    show_default=True,
    help="The format.",
)
@click.option("--lower", "is_lowered", is_flag=True, help="Add sends, receives and updates.")
@click.option(
    *("-o", "--output"),
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write to a file, all of it or nothing.",
)
def command(request: Request, form: str, is_lowered: bool, output: Path | None) -> None:
    """Write the program of schedule NAME, or of the file NAME, in another format.

    \b
      $ weft export 1f1b -d 2 -n 2
      weft program 1
      name 1f1b
      microbatches 2
      graph chain 2
      place 0 1
      device 0: 0F0 0F1 0B0 0B1
      device 1: 1F0 1B0 1F1 1B1

    \b
      $ weft export zbv -d 4 -n 8 --format torch-csv --lower -o zbv.csv
      $ weft export wpipe -d 4 -n 4 --format perfetto -o wpipe.json

    text and json read back to the same program. torch-csv is what the runtime of
    torch.distributed.pipelining loads: as compute_only, or with --lower as compute_comms.
    timeline-json adds the costs and when each action starts and ends; perfetto is a trace of
    that for ui.perfetto.dev, with a track for each stream, messages and memory.
    """
    if output is not None:
        check_folder(output)
    with working("proving and writing"):
        program = _lowered(request.program) if is_lowered else request.program
        if is_lowered:  # the updates of a plan are there
            request = replace(request, passes=replace(request.passes, steps=None))
        timeline = request.timeline_of(program)
        text = PROGRAMS[form](program) if form in PROGRAMS else TIMELINES[form](timeline)
    if output is None:
        print(text, end="")
    else:
        write(output, text)


def _lowered(program: Program) -> Program:
    """With wires, and with updates unless the program places its own."""
    has_updates = bool((program.actions.kind == Kind.UPDATE).any())
    return wires(program) if has_updates else updates(wires(program))
