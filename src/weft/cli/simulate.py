"""`weft simulate`: the figures of one program, for people or as JSON."""

from __future__ import annotations

import click

from weft.cli.asked import asked, timed
from weft.cli.figures import figures, report
from weft.cli.help import Sectioned
from weft.cli.options import as_json, jittering
from weft.cli.output import show, show_json
from weft.request import Request


@click.command("simulate", cls=Sectioned)
@asked
@jittering
@as_json
def command(request: Request, jitter: str | float | None, is_json: bool) -> None:
    """Simulate schedule NAME, or the program in the file NAME, and report its figures.

    \b
      $ weft simulate 1f1b -d 4 -n 8
      time           33     from the first start to the last end
      bubble, wall   27.3%  idle fraction of all devices within that time
      device  work  idle  warm-up  value  exposed  order  cool-down  peak  memory
           0    24     9        0      3        0      6          0     4       5
           1    24     9        1      2        0      4          2     3       4
           2    24     9        2      1        0      2          4     2       3
           3    24     9        3      0        0      0          6     1       2

    \b
      $ weft simulate zbv -d 8 -n 32 --forward 1 --input-grad 1 --weight-grad 0.5 --json
      $ weft simulate 1f1b -d 8 -n 24 --model gpt-6.2b --device a100
      $ weft simulate 1f1b -d 8 -n 32 --offload all --copy 0.75
      $ weft simulate 1f1b -d 8 -n 32 --jitter 0.05

    Prints makespan, both bubbles, and for each device its work, why it waits, what it holds.
    With --json, one object: makespan, longest_device_span, bubble {wall, span},
    peak_activations and memory (for each device), weight_copies, messages, versions and
    staleness (for each stage), actions, verified, provenance {given, measured, interpolated,
    derived}, the fractions of all seconds that are known so; for an asynchronous schedule also
    steady {period, bubble}, seconds per update and bubble once it has settled; for a model on a
    device also speed {devices, tokens_per_second, mfu}; with --jitter also jitter {mean, low,
    high, draws}: how many times as long steps take as without.

    Unit costs are those of a device's whole share: with K stages on a device, each takes 1/K.
    Costs of a model on a device are in seconds and bytes. They are a bound, the best that the
    device can do, where all of them are derived, and an estimate where some were measured. What
    needs more memory than a device has is timed with a warning; only `weft verify` refuses it.
    """
    timeline, proof = timed(request)
    steady = request.settled()
    speed = request.costs.speed(timeline, steady)
    jittered = None if jitter is None else request.jittered(jitter, timeline)
    if is_json:
        show_json(figures(timeline, proof, steady, speed, jittered))
    else:
        show(*report(timeline, proof, steady, speed, jittered))
