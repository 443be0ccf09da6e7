"""Chimera: pipelines in both directions, each filling the other's bubble."""

import numpy as np

from weft.cost import Share
from weft.ir.actions import Actions
from weft.ir.kinds import Kind
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.schedules.kit.orders import by_slot
from weft.schedules.kit.schedule import EVEN_DEVICES, Claims, Need, schedule
from weft.schedules.kit.shape import Shape


def _taken(shape: Shape) -> int:
    """How many microbatches a forward takes together."""
    return 2 if shape.variant == "doubling" else 1


def _parts(shape: Shape) -> int:
    """Into how many parts a microbatch is cut, each with a backward of its own."""
    return 2 if shape.variant == "halving" else 1


def _placement(shape: Shape) -> Placement:
    """Pipe k enters at device k D/f and runs down the ring; its mirror image runs up."""
    devices, step = shape.devices, shape.devices // shape.pipes
    down = [
        tuple((pipe * step + stage) % devices for stage in range(devices))
        for pipe in range(shape.pipes)
    ]
    up = [tuple(devices - 1 - device for device in pipe) for pipe in down]
    return Placement((*down, *up))


def _lane(device: int, placement: Placement, shape: Shape) -> Actions:
    """In slots of equal length: F(i, s) at 2i + s, B(i, s) at 2i + 2D - 1 - s; units of D
    forwards follow each other at 2D slots. Where an F takes several, their Bs share its slot."""
    devices, span = shape.devices, _taken(shape) * _parts(shape)
    each = devices // len(placement.pipes)  # forwards of a pipe in a unit
    forwards = shape.microbatches // _taken(shape)
    unit, index = np.divmod(np.arange(forwards // len(placement.pipes)), each)
    rows = []
    for pipe, stage in placement.held[device]:
        first = span * (unit * devices + pipe * each + index)
        start = 2 * (unit * devices + index)
        rows.append((Actions.of(stage, Kind.F, first, span=span), start + stage))
        for microbatch in (first + offset for offset in range(span)):
            rows.append((Actions.of(stage, Kind.B, microbatch), start + 2 * devices - 1 - stage))
    return by_slot(*rows)


def _seconds(shape: Shape, share: Share) -> float:
    devices, microbatches = shape.devices, shape.microbatches
    idle = devices // shape.pipes - 2
    if share.forward == share.backward:
        return share.forward * (2 * microbatches + idle)
    times = _taken(shape) if shape.variant else microbatches // devices + 1
    return share.forward * (3 * microbatches + times * idle)


def _holds(shape: Shape, share: Share) -> bool:
    is_doubled = share.backward == 2 * share.forward
    return is_doubled or (not shape.variant and share.backward == share.forward)


def _peak(shape: Shape, device: int) -> float:
    """Half the devices at the ends of a pipe, one more for each step towards its middle."""
    ring = shape.devices // shape.pipes
    place = device % ring
    return _taken(shape) * (shape.devices - ring // 2 + 1 + min(place, ring - 1 - place))


@schedule(
    name="chimera",
    summary="two pipelines in opposite directions (--pipes f: f each way), direct concatenation",
    paper="Li and Hoefler 2021, Chimera (arXiv 2107.06925)",
    claims=Claims(
        formula="B = F: (2N + D/f - 2) F;  B = 2F: (3N + M (D/f - 2)) F,"
        " M = N/D + 1, doubling 2, halving 1",
        seconds=_seconds,
        peak_formula="D - D/2f + 1 at the ends of a pipe, D in its middle; doubling twice that",
        peak=_peak,
        holds=_holds,
        weight_copies=lambda shape: 2 * shape.pipes,
    ),
    needs=[
        EVEN_DEVICES,
        Need(
            "pipes that divide half the devices",
            lambda shape: shape.devices // 2 % shape.pipes == 0,
            lambda shape: shape.but(pipes=_largest_divisor(shape.devices // 2, shape.pipes)),
        ),
        Need(
            "a multiple of D microbatches (doubling: of 2D)",
            lambda shape: shape.microbatches % _unit(shape) == 0,
            lambda shape: shape.but(
                microbatches=-(-shape.microbatches // _unit(shape)) * _unit(shape)
            ),
        ),
    ],
    variants={
        "doubling": "each F takes two microbatches: constant extra time, twice the peak",
        "halving": "each microbatch is cut in two for B: half of that extra time, the plain peak",
    },
    takes_pipes=True,
)
def chimera(shape: Shape) -> Program:
    placement = _placement(shape)
    microbatches = np.arange(shape.microbatches * _parts(shape))
    unit = _unit(shape) * _parts(shape)
    return Program.build(
        "chimera",
        placement,
        [_lane(device, placement, shape) for device in range(shape.devices)],
        microbatches=len(microbatches),
        pipe_of=(microbatches % unit * len(placement.pipes) // unit).tolist(),
        parts=_parts(shape),
    )


def _unit(shape: Shape) -> int:
    return shape.devices * _taken(shape)


def _largest_divisor(number: int, most: int) -> int:
    return max(d for d in range(1, min(number, most) + 1) if number % d == 0)
