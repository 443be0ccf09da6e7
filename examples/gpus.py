"""Train on GPUs, one for each rank; where there are too few, on CPUs.

    torchrun --nproc-per-node 8 examples/gpus.py
    python examples/gpus.py

Every rank builds the whole model, and moves what it holds of it to its GPU.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn

import weft
from weft.schedules import one_f_one_b

LAYERS, MICROBATCHES, WIDTH, STEPS = 8, 16, 64, 10


def place() -> torch.device:
    """The GPU of this rank, or the CPU."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.device_count() < int(os.environ.get("LOCAL_WORLD_SIZE", "1")):
        return torch.device("cpu")
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def main() -> None:
    device = place()
    if dist.is_torchelastic_launched():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)

    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    stages = weft.split(nn.Sequential(*blocks), stages=ranks)
    stages[rank].to(device)  # 1f1b has stage s on device s; the others need no GPU memory

    pipeline = weft.Pipeline(
        stages,
        one_f_one_b(devices=ranks, microbatches=MICROBATCHES),
        loss=nn.functional.mse_loss,
        optimizer=lambda named: torch.optim.AdamW([weight for _, weight in named], lr=1e-2),
        clip=1.0,
    )
    generator = torch.Generator().manual_seed(1)  # every rank draws the same data
    for step in range(STEPS):
        batch = torch.randn(4 * MICROBATCHES, WIDTH, generator=generator)
        result = pipeline.step(batch, batch.roll(1, dims=-1).sin())
        if rank == 0:
            print(f"step {step}: loss {result.loss:.9f}")
    pipeline.close()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
