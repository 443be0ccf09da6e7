"""V-Half: two stages per device in a V, timed to keep half of 1F1B's activations."""

from weft.ir.program import Program
from weft.schedules.kit.building_block import Block, claims_of, repeated
from weft.schedules.kit.schedule import schedule
from weft.schedules.kit.shape import Shape
from weft.schedules.kit.squeeze import squeezed


def _blocks(devices: int) -> list[Block]:
    """Two slots a device on the way out, one on the way back, forwards and backwards alike."""
    pause = 3 if devices % 2 == 0 else 0  # else two actions would share a slot
    turn = 3 * devices - 2
    return [
        Block(
            2 * device, turn - device, turn + pause + 1 + 2 * device, 2 * turn + pause + 2 - device
        )
        for device in range(devices)
    ]


def _peak(devices: int, device: int) -> float:
    return (devices + 2) // 2


@schedule(
    name="v-half",
    summary="two stages per device in a V, split backward, at half of 1F1B's peak",
    paper="Qi et al. 2024, Pipeline Parallelism with Controllable Memory (arXiv 2405.15362)",
    claims=claims_of(_peak, peak_formula="min(N, (D + 2)//2) on every device"),
    stages_per_device=(2, 2),
)
def v_half(shape: Shape) -> Program:
    program = repeated("v-half", _blocks(shape.devices), microbatches=shape.microbatches)
    return squeezed(program, peak=_peak)
