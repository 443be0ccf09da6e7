"""Asked: one program, what passes add to it and what it costs, as several commands take it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import Any

from weft.cli.capacity import warn_of_memory
from weft.cli.options import Command, Passes, Prices, Sizes, named, passed, priced, sized
from weft.cli.passes import in_streams, timed
from weft.cli.progress import working
from weft.cli.requests import Pricing, pricing_of, program_of, steady_of
from weft.ir.program import Program
from weft.simulate import Steady
from weft.timeline import Timeline
from weft.verify import Report


@dataclass(frozen=True, slots=True)
class Asked:
    """NAME and the options that say how to time it."""

    name: str
    sizes: Sizes
    passes: Passes
    pricing: Pricing

    def proved(self) -> tuple[Timeline, Report]:
        """Its timeline and proof; what does not fit into a device is told."""
        return _warned(self.timed())

    def timed(self) -> tuple[Timeline, Report]:
        """Its timeline and proof."""
        with working("proving and timing"):
            return timed(program_of(self.name, self.sizes), self.pricing, self.passes)

    def in_streams(self) -> Timeline:
        """Its timeline with every stream in use."""
        with working("proving and timing"):
            found = in_streams(program_of(self.name, self.sizes), self.pricing, self.passes)
        return _warned(found)[0]

    def timeline_of(self, program: Program) -> Timeline:
        """Another program, timed in the same way."""
        return timed(program, self.pricing, self.passes)[0]

    def settled(self) -> Steady | None:
        """What it settles into where it does not flush; passes are not part of that."""
        return steady_of(self.name, self.sizes, self.pricing) if self.passes == Passes() else None


def asked(command: Command) -> Command:
    """Add NAME and the options of shape, passes and costs; the command gets them as `asked`."""

    @wraps(command)
    def asking(name: str, sizes: Sizes, passes: Passes, prices: Prices, **more: Any) -> None:
        command(asked=Asked(name, sizes, passes, pricing_of(prices)), **more)

    return named(sized(passed(priced(asking))))


def _warned(proved: tuple[Timeline, Report]) -> tuple[Timeline, Report]:
    warn_of_memory(proved[0])
    return proved
