"""`weft simulate`: the figures of one program, for people or as JSON."""

from __future__ import annotations

import click

from weft.cli.figures import figures, report
from weft.cli.options import Prices, Sizes, as_json, named, priced, sized
from weft.cli.output import show, show_json
from weft.cli.requests import cost_of, pricing_of, program_of, proved, steady_of


@click.command("simulate")
@named
@sized
@priced
@as_json
def command(name: str, sizes: Sizes, prices: Prices, is_json: bool) -> None:
    """Time schedule NAME, or the program in the file NAME.

    \b
      $ weft simulate 1f1b -d 4 -n 8
      $ weft simulate zbv -d 8 -n 32 --forward 1 --input-grad 1 --weight-grad 0.5 --json

    Prints makespan, both bubbles, and for each device its work, why it waits, what it holds.
    With --json one object: makespan, longest_device_span, bubble {wall, span},
    peak_activations and memory (for each device), weight_copies, messages, versions and
    staleness (for each stage), actions, verified; of a schedule that does not flush also
    steady {period, bubble}, seconds per update and bubble once it has settled.

    Costs are those of a whole device's share: with K stages on a device, each takes 1/K.
    """
    program, pricing = program_of(name, sizes), pricing_of(prices)
    timeline, proof = proved(program, cost_of(program, pricing))
    steady = steady_of(name, sizes, pricing)
    if is_json:
        show_json(figures(timeline, proof, steady))
    else:
        show(*report(timeline, proof, steady))
