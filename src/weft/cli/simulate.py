"""`weft simulate`: the figures of one program, for people or as JSON."""

from __future__ import annotations

import click

from weft.cli.capacity import warn_of_memory
from weft.cli.figures import figures, report
from weft.cli.help import Sectioned
from weft.cli.options import Passes, Prices, Sizes, as_json, named, passed, priced, sized
from weft.cli.output import show, show_json
from weft.cli.passes import timed
from weft.cli.requests import pricing_of, program_of, speed_of, steady_of


@click.command("simulate", cls=Sectioned)
@named
@sized
@passed
@priced
@as_json
def command(name: str, sizes: Sizes, passes: Passes, prices: Prices, is_json: bool) -> None:
    """Time schedule NAME, or the program in the file NAME.

    \b
      $ weft simulate 1f1b -d 4 -n 8
      $ weft simulate zbv -d 8 -n 32 --forward 1 --input-grad 1 --weight-grad 0.5 --json
      $ weft simulate 1f1b -d 8 -n 24 --model gpt-6.2b --device a100
      $ weft simulate 1f1b -d 8 -n 32 --offload all --copy 0.75

    Prints makespan, both bubbles, and for each device its work, why it waits, what it holds.
    With --json one object: makespan, longest_device_span, bubble {wall, span},
    peak_activations and memory (for each device), weight_copies, messages, versions and
    staleness (for each stage), actions, verified, provenance {given, measured, interpolated,
    derived}, the shares of seconds that are known so; of a schedule that does not flush also
    steady {period, bubble}, seconds per update and bubble once it has settled; of a model on a
    device also speed {devices, tokens_per_second, mfu}.

    Unit costs are those of a whole device's share: with K stages on a device, each takes 1/K.
    Costs of a model on a device are in seconds and bytes. They are a bound, the best that the
    device can do, where all of them are derived, and an estimate where some were measured. What
    needs more memory than a device has is timed with a warning; only `weft verify` refuses it.
    """
    program, pricing = program_of(name, sizes), pricing_of(prices)
    timeline, proof = timed(program, pricing, passes)
    steady = steady_of(name, sizes, pricing)
    speed = speed_of(timeline, pricing, steady)
    warn_of_memory(timeline)
    if is_json:
        show_json(figures(timeline, proof, steady, speed))
    else:
        show(*report(timeline, proof, steady, speed))
