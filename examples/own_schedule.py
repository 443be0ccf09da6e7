"""A schedule of your own: proved, simulated, drawn, and then it trains.

    python examples/own_schedule.py
    torchrun --nproc-per-node 4 examples/own_schedule.py

A device that is free runs a backward if it can, and else a forward as early as it can, but never
holds more than CAP microbatches between the two. Beside 1F1B that is a lower peak for more time.
Both commands print the same losses.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn

import weft
from weft.draw import plain
from weft.ir import Action, Kind, Placement, Program
from weft.schedules import Shape, one_f_one_b
from weft.simulate import simulate
from weft.verify import check

CAP, WIDTH, STEPS = 3, 32, 5


def capped(shape: Shape) -> Program:
    """Tick by tick, each device sees what its neighbours had done at the tick before."""
    lanes: list[list[Action]] = [[] for _ in range(shape.devices)]
    forwards, backwards = [0] * shape.devices, [0] * shape.devices
    while backwards[0] < shape.microbatches:
        arrived = [shape.microbatches, *forwards[:-1]]
        returned = [*backwards[1:], forwards[-1]]
        for device, lane in enumerate(lanes):
            if backwards[device] < returned[device]:
                lane.append(Action(device, Kind.B, backwards[device]))
                backwards[device] += 1
            elif forwards[device] < min(arrived[device], backwards[device] + CAP):
                lane.append(Action(device, Kind.F, forwards[device]))
                forwards[device] += 1
    placement = Placement.straight(shape.devices)
    return Program.build("capped", placement, lanes, microbatches=shape.microbatches)


def show(program: Program) -> None:
    check(program)
    timeline = simulate(program)
    print(plain(timeline, width=120))
    print(f"most in flight on each device: {timeline.peak_activations}\n")


def train(program: Program) -> Iterator[float]:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(program.stages)]
    pipeline = weft.Pipeline(
        blocks,
        program,
        loss=nn.functional.mse_loss,
        optimizer=lambda named: torch.optim.AdamW([weight for _, weight in named], lr=1e-2),
    )
    batch = torch.randn(4 * program.microbatches, WIDTH)
    for _ in range(STEPS):
        yield float(pipeline.step(batch, batch.roll(1, dims=-1)).loss)


def main() -> None:
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    torch.set_num_threads(1)
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    shape = Shape(devices=4, microbatches=8)
    program = capped(shape)
    if is_first:
        show(one_f_one_b.program(shape))
        show(program)
    for step, loss in enumerate(train(program)):
        if is_first:
            print(f"step {step}: loss {loss:.9f}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
