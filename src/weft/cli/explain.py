"""`weft explain`: where the time and the memory go, and what would help."""

from __future__ import annotations

import click

from weft.cli.asked import Asked, asked
from weft.cli.help import Sectioned
from weft.cli.options import as_json
from weft.cli.output import show, show_json, table
from weft.cli.progress import with_progress
from weft.cli.requests import is_file, shape_of
from weft.explain import (
    Candidate,
    Explanation,
    all_tried,
    candidates,
    eased,
    explain,
    larger,
    record,
    told,
    tried,
)
from weft.schedules import REGISTRY


@click.command("explain", cls=Sectioned)
@asked
@as_json
def command(asked: Asked, is_json: bool) -> None:
    """Explain schedule NAME, or the program in the file NAME, in words and numbers.

    \b
      $ weft explain 1f1b -d 4 -n 8
      A step takes 33: of all devices' time 72.7% is work and 27.3% is idle.
      Every device is idle 9 of 33.
      The critical path has 22 actions: forward 11, backward 22.
         0      3  F0                     device 0 > 1 > 2
         3     24  F0 B0 F1 ... B6 F7 B7  device 3
        27      6  B7                     device 2 > 1 > 0
      Device 0 holds most, 5, from F3 at 3 on: activations 4, weights 1.
      What would help, by simulation: zbv saves 22.7% of the time and needs no more memory.

    Says why each device is idle and what it waits for, which actions decide the time, what
    fills the memory, and what would help: every other schedule and variant at this shape, twice
    the microbatches, recomputation, shorter actions, even stages, instant wires, each simulated
    with the same costs. A schedule that flushes is compared with those that do, since the
    others compute something else. Where a device has a limit, what does not fit is no advice:
    it is tried with --recompute all and --offload all.

    \b
      $ weft explain 1f1b -d 8 -n 24 --model gpt-6.2b --device a100
      $ weft explain zbv -d 4 -n 8 --lag 0.2 --json

    With --json one object: makespan, bubble, steady {period, bubble} where it does not flush,
    idle (by cause), accounts (for each device, with every stretch), critical_path {legs, seconds
    by kind}, memory (for each device, by category), helps {better, twice_the_microbatches,
    all_recomputed, cheaper}.
    """
    explanation = _explained(asked)
    if is_json:
        show_json(record(explanation))
        return
    for section in told(explanation):
        show(*section.lines)
        if section.rows:
            show(table(section.columns, section.rows))


def _explained(asked: Asked) -> Explanation:
    """With other schedules beside it, unless it comes from a file."""
    (timeline, _), settled = asked.timed(), asked.settled()
    if is_file(asked.name):
        return explain(timeline, settled=settled)
    schedule = REGISTRY[asked.name]
    shape = shape_of(schedule, asked.sizes)
    twice = larger(schedule, shape)
    others = with_progress(candidates(schedule, shape))
    return explain(
        timeline,
        options=[
            *eased(timeline, Candidate(schedule, shape)),
            *(option for other in others for option in all_tried(other, asked.timeline_of)),
        ],
        larger=tried(twice, asked.timeline_of) if twice else None,
        settled=settled,
    )
