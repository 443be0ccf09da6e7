"""Asked: the request that NAME and the options of shape, passes and costs make."""

from __future__ import annotations

from functools import wraps
from typing import Any

from weft.cli.capacity import warn_of_memory
from weft.cli.options import MACHINE, PASSES, PRICES, SIZES, Command, Options, bundled, named
from weft.cli.progress import working
from weft.request import Costs, Machine, Passes, Prices, Request, Sizes, request_called
from weft.timeline import Timeline
from weft.verify import Report


def asked(command: Command) -> Command:
    """Add NAME and the options of shape, passes and costs; the command gets a `request`."""
    return _asking(command, PASSES)


def asked_as_is(command: Command) -> Command:
    """The same for a command that takes a program without passes."""
    return _asking(command, {})


def priced(command: Command) -> Command:
    """Add the options of costs; the command gets them as `costs`."""

    @wraps(command)
    def pricing(prices: Prices, machine: Machine, **more: Any) -> None:
        command(costs=Costs.asked(prices, machine), **more)

    with_prices = bundled("prices", Prices, PRICES)(pricing)
    return bundled("machine", Machine, MACHINE)(with_prices)


def _asking(command: Command, passes: Options) -> Command:
    @wraps(command)
    def asking(name: str, sizes: Sizes, passes: Passes, costs: Costs, **more: Any) -> None:
        command(request=request_called(name, sizes, passes, costs), **more)

    with_passes = bundled("passes", Passes, passes)(priced(asking))
    return named(bundled("sizes", Sizes, SIZES)(with_passes))


def timed(request: Request) -> tuple[Timeline, Report]:
    """Its timeline and proof; a warning says what does not fit into a device."""
    with working("proving and timing"):
        found = request.timed()
    warn_of_memory(found[0])
    return found


def lowered(request: Request) -> Timeline:
    """Its timeline as ranks run it, with the same warning."""
    with working("proving and timing"):
        timeline, _ = request.lowered()
    warn_of_memory(timeline)
    return timeline


def in_streams(request: Request) -> Timeline:
    """Its timeline with every stream in use, with the same warning."""
    with working("proving and timing"):
        timeline, _ = request.in_streams()
    warn_of_memory(timeline)
    return timeline
