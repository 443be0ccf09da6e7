"""`weft explain`: where the time and the memory go, and what would help."""

from __future__ import annotations

import click

from weft.cli.asked import asked
from weft.cli.help import Sectioned
from weft.cli.options import as_json
from weft.cli.output import show, show_json, table
from weft.cli.progress import with_progress, working
from weft.explain import (
    Candidate,
    Explanation,
    all_tried,
    candidates,
    eased,
    explain,
    in_words,
    larger,
    record,
    tried,
)
from weft.request import Request


@click.command("explain", cls=Sectioned)
@asked
@as_json
def command(request: Request, is_json: bool) -> None:
    """Explain schedule NAME, or the program in the file NAME, in words and numbers.

    \b
      $ weft explain 1f1b -d 4 -n 8
      A step takes 33: of all devices' time 72.7% is work and 27.3% is idle.
      Every device is idle 9 of 33.
      The critical path has 22 actions, which take: forward 11, backward 22.
         0      3  F0                     device 0 > 1 > 2
         3     24  F0 B0 F1 ... B6 F7 B7  device 3
        27      6  B7                     device 2 > 1 > 0
      Device 0 holds most, 5, from F3 at 3 on: activations 4, weights 1.
      What would help, by simulation: zbv saves 22.7% of the time and needs no more memory.

    Says why each device is idle and what it waits for, which actions decide the time, what
    fills the memory, and what would help: every other schedule and variant at this shape, twice
    the microbatches, recomputation, shorter actions, even stages, instant wires, each simulated
    with the same costs. Synchronous schedules are compared with synchronous ones, since the
    others compute something else. Where a device has a limit, what does not fit is not
    recommended; it is tried with --recompute all and --offload auto.

    \b
      $ weft explain 1f1b -d 8 -n 24 --model gpt-6.2b --device a100
      $ weft explain zbv -d 4 -n 8 --latency 0.2 --json

    With --json one object: makespan, bubble, steady {period, bubble} of an asynchronous one,
    idle (by cause), accounts (for each device, with every stretch), critical_path {legs, seconds
    by kind}, memory (for each device, by category), helps {better, twice_the_microbatches,
    all_recomputed, cheaper}.
    """
    explanation = _explained(request)
    if is_json:
        show_json(record(explanation))
        return
    for section in in_words(explanation):
        show(*section.lines)
        if section.rows:
            show(table(section.columns, section.rows))


def _explained(request: Request) -> Explanation:
    """With other schedules beside it, unless it comes from a file."""
    with working("proving and timing"):
        timeline, _ = request.timed()
        settled = request.settled()
    if request.is_file:
        return explain(timeline, settled=settled)
    schedule, shape = request.schedule, request.shape
    twice = larger(schedule, shape)
    others = with_progress(candidates(schedule, shape))
    return explain(
        timeline,
        options=[
            *eased(timeline, Candidate(schedule, shape)),
            *(option for other in others for option in all_tried(other, request.timeline_of)),
        ],
        larger=tried(twice, request.timeline_of) if twice else None,
        settled=settled,
    )
