"""V-Min: two stages per device in a V, timed to keep a third of 1F1B's activations."""

from weft.ir.program import Program
from weft.schedules.kit.building_block import Block, claims_of, repeated
from weft.schedules.kit.schedule import schedule
from weft.schedules.kit.shape import Shape
from weft.schedules.kit.squeeze import squeezed


def _blocks(devices: int) -> list[Block]:
    """One slot a device, out and back: no microbatch waits but for the pause before its Is."""
    pause = 2 if devices % 3 == 0 else 0  # else two actions would share a slot
    turn = 2 * devices
    return [
        Block(device, turn - 1 - device, turn + pause + device, 2 * turn + pause - 1 - device)
        for device in range(devices)
    ]


def _peak(devices: int, device: int) -> float:
    """Device 0 has half a microbatch to spare where the block leaves it a slot."""
    spare = 0.5 if device == 0 and devices % 3 == 2 else 0
    return (devices + 4) // 3 - spare


@schedule(
    name="v-min",
    summary="two stages per device in a V, split backward, at a third of 1F1B's peak",
    paper="Qi et al. 2024, Pipeline Parallelism with Controllable Memory (arXiv 2405.15362)",
    claims=claims_of(
        _peak,
        peak_formula="min(N, (D + 4)//3) on every device; on the first 1/2 less if D mod 3 = 2",
    ),
    stages_per_device=(2, 2),
)
def v_min(shape: Shape) -> Program:
    program = repeated("v-min", _blocks(shape.devices), microbatches=shape.microbatches)
    return squeezed(program, peak=_peak)
