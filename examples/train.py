"""Train a small network by any schedule, in one process or on one rank per device.

    python examples/train.py zbv
    torchrun --nproc-per-node 4 examples/train.py zbv

Both print the same losses, to the last bit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

import weft
from weft.schedules import REGISTRY

DEVICES, MICROBATCHES, WIDTH, STEPS = 4, 8, 32, 10


def model(stages: int) -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(stages)]
    return nn.Sequential(*blocks)


def loader() -> Iterator[tuple[Tensor, Tensor]]:
    """Every rank iterates the same data."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        batch = torch.randn(4 * MICROBATCHES, WIDTH, generator=generator)
        yield batch, batch.roll(1, dims=-1).sin()


def main(name: str) -> None:
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    torch.set_num_threads(1)
    program = REGISTRY[name](devices=DEVICES, microbatches=MICROBATCHES)
    pipeline = weft.Pipeline(
        weft.split(model(program.stages), stages=program.stages),
        program,
        loss=nn.functional.mse_loss,
        optimizer=lambda named: torch.optim.AdamW([weight for _, weight in named], lr=1e-2),
        clip=1.0,
    )
    for step, (batch, target) in enumerate(loader()):
        result = pipeline.step(batch, target)
        if not dist.is_initialized() or dist.get_rank() == 0:
            print(f"step {step}: loss {result.loss:.9f}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "1f1b")
