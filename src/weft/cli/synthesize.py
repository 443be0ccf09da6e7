"""`weft synthesize`: the best order for given times and memory, and how good it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from weft.cli.asked import priced
from weft.cli.figures import Fact, figures, report
from weft.cli.files import check_folder, write
from weft.cli.help import SECTIONS, Sectioned, names_of
from weft.cli.options import Flag, as_json, bundled, flags
from weft.cli.output import facts, show, show_json
from weft.cli.progress import updated
from weft.cost import Share
from weft.draw.caption import percent
from weft.draw.units import time_unit
from weft.errors import InputError
from weft.ir.placement import Placement
from weft.notation import to_json, to_text, to_torch_csv
from weft.plan.synthesis import (
    Effort,
    Problem,
    Synthesis,
    check_size,
    one_microbatch,
    synthesize,
)
from weft.request import DEVICES, Costs
from weft.request.values import AMOUNT, COUNT, Bundle, Numbers, OneOf, given
from weft.simulate import simulate
from weft.timeline import Timeline
from weft.verify import check

OFF = 0.05  # fraction by which times are taken to be off
FORMATS = {".json": to_json, ".csv": to_torch_csv}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern(Bundle):
    """How many of everything, and where stages are."""

    devices: int = given(COUNT, DEVICES)
    microbatches: int | None = given(COUNT)
    stages_per_device: int | None = given(COUNT)
    placement: str = given(OneOf(("loop", "v")), "loop")
    cap: tuple[float, ...] | None = given(Numbers(float, "6 or 6,6,5,4"))
    time: float | None = given(AMOUNT)

    def placed(self) -> Placement:
        """Stage s on device s mod D, or there and back."""
        if self.placement == "loop":
            return Placement.looped(self.devices, self.stages_per_device or 1)
        if self.stages_per_device not in (None, 2):
            raise InputError(
                f"placement v has two stages on a device, not {self.stages_per_device};"
                " leave out -k"
            )
        return Placement.wave(self.devices)

    def caps(self) -> tuple[float, ...]:
        """One for each device."""
        if not self.cap:
            raise InputError(
                "--cap is needed: the most microbatches that a device may hold, such as --cap 4"
            )
        return self.cap * self.devices if len(self.cap) == 1 else self.cap

    def problem(self, costs: Costs) -> Problem:
        """What is to be solved, with caps in microbatches of a whole device's share."""
        check_size(self.devices * (self.stages_per_device or 2), self._microbatches)
        placement, caps = self.placed(), self.caps()
        cost = costs.of(one_microbatch(placement))
        if isinstance(costs.base, Share) and costs.base.pair is not None:
            raise InputError("synthesised programs overlap no pairs; leave out --pair")
        held = (placement.share,) * placement.stages
        return Problem.from_cost(cost, placement, self._microbatches, caps, held)

    @property
    def _microbatches(self) -> int:
        return self.microbatches or 2 * self.devices


PATTERN = flags(
    Pattern,
    devices=Flag("Devices.", "D", "-d"),
    microbatches=Flag("Microbatches per step.  [default: 2 D]", "N", "-n"),
    stages_per_device=Flag("Stages on each device.  [default: 1, or 2 with v]", "K", "-k"),
    placement=Flag("Stages in a loop, 0 1 2 0 1 2, or as a V, 0 1 2 2 1 0."),
    cap=Flag(
        "The most microbatches that a device holds, as peak_activations counts: of all devices,"
        " or of each.",
        "P|P,P,...",
    ),
    time=Flag("Seconds to search; without it, the same command prints the same.", "SECONDS"),
)


@click.command("synthesize", cls=Sectioned, sections={"The problem": names_of(Pattern), **SECTIONS})
@bundled("pattern", Pattern, PATTERN)
@priced
@click.option(
    *("-o", "--out", "output"),
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the program: text, or JSON or torch's CSV by the suffix.",
)
@as_json
def command(pattern: Pattern, costs: Costs, output: Path | None, is_json: bool) -> None:
    """Find the order that ends soonest with no device above its cap, and report its figures.

    \b
      $ weft synthesize -d 4 -n 8 --cap 3
      time           31     from the first start to the last end
      device  work  idle  warm-up  value  exposed  order  cool-down  peak  memory
           0    24     7        0      2        0      5          0     3       4
      bound           31       no order ends sooner: this one is optimal

    \b
      $ weft synthesize -d 4 -n 8 --cap 2 -k 2 --placement v --json
      $ weft synthesize -d 4 -n 8 --cap 6 --forward 10 --input-grad 11 --weight-grad 8 --latency 1
      $ weft synthesize -d 4 -n 8 --cap 3 -o mine.txt

    The result is a program as any other: draw, simulate, explain, verify, export and train take
    the file that -o writes. The cap counts as peak_activations does: an activation is held from
    the start of its F to the end of its W, with K stages on a device each counts 1/K, and the
    smallest cap is 1. Costs are those of a device's whole share, as everywhere.

    List schedules, what the registry has for the placement, periods that repeat and, where the
    problem is small, an exact model are tried in turn; all but the first two need OR-tools
    (pip install 'weft[plan]'). Ctrl-C keeps the best so far. Prints what `weft simulate` prints,
    the bound that no order is below, and how long the order takes with times that are 5 % off.
    With --json the same object, and bound, is_optimal, method and times_off {fraction, mean,
    longest}.
    """
    if output is not None:
        check_folder(output)
    found = _best(pattern.problem(costs), Effort(seconds=pattern.time or None))
    if output is not None:
        write(output, FORMATS.get(output.suffix.lower(), to_text)(found.program))
    timeline, proof = simulate(found.program, found.problem.cost), check(found.program)
    speed = costs.speed(timeline)
    if is_json:
        show_json(figures(timeline, proof, speed=speed) | _quality(found))
    else:
        show(*report(timeline, proof, speed=speed), "", facts(_words(timeline, found)))


def _best(problem: Problem, effort: Effort) -> Synthesis:
    """The best that is found, also where somebody interrupts the search."""
    seen: list[Synthesis] = []
    with updated("searching") as say:

        def watch(found: Synthesis) -> None:
            seen[:] = [found]
            say(f"{found.makespan:g}, {percent(found.gap)} above the bound: {found.method}")

        try:
            return synthesize(problem, effort, watch)
        except KeyboardInterrupt:
            if not seen:
                raise
    click.echo("weft: interrupted; this is the best so far", err=True)
    return seen[0]


def _quality(found: Synthesis) -> dict[str, Any]:
    return {
        "bound": found.bound,
        "is_optimal": found.is_optimal,
        "method": found.method,
        "times_off": {"fraction": OFF, **found.with_times_off(OFF)._asdict()},
        **({"missing": found.missing} if found.missing else {}),
    }


def _words(timeline: Timeline, found: Synthesis) -> Iterator[Fact]:
    unit = time_unit(timeline)
    above = "no order ends sooner: this one is optimal"
    if not found.is_optimal:
        above = f"no order ends sooner; this one is {percent(found.gap)} above it"
    yield "bound", unit.amount(found.bound), above
    yield "found by", "", found.method
    off = found.with_times_off(OFF)
    yield (
        f"times {percent(OFF)} off",
        unit.amount(off.mean),
        f"on average, if the times of every stage are off by as much; at most"
        f" {unit.amount(off.longest)}",
    )
    if found.missing:
        yield "missing", "", found.missing
