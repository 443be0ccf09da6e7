"""Train a model of which each rank makes its own stage alone, so that no process holds the whole.

    python examples/larger_than_a_process.py
    torchrun --nproc-per-node 2 examples/larger_than_a_process.py
    torchrun --nproc-per-node 4 examples/larger_than_a_process.py 8192  # 2 GB, 512 MB a rank

All numbers of ranks print the same losses, to the last bit: what weights start from depends on
their names and the seed alone. With `initial=folder` they would come from a checkpoint.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn

import weft
from weft.schedules import one_f_one_b

LAYERS, MICROBATCHES, STEPS = 8, 8, 5


def main(width: int) -> None:
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    torch.set_num_threads(1)
    ranks = dist.get_world_size() if dist.is_initialized() else 4
    with torch.device("meta"):  # names and shapes, without memory
        blocks = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(LAYERS)]
    pipeline = weft.Pipeline(
        weft.split(nn.Sequential(*blocks), stages=ranks),
        one_f_one_b(devices=ranks, microbatches=MICROBATCHES),
        loss=nn.functional.mse_loss,
        optimizer=lambda named: torch.optim.SGD([weight for _, weight in named], lr=1.0),
    )
    weights = [weight for stage in pipeline.modules.values() for weight in stage.parameters()]
    megabytes = sum(weight.nbytes for weight in weights) / 1e6
    whole = LAYERS * (width + 1) * width * 4 / 1e6
    print(f"{megabytes:.3f} of {whole:.3f} MB are held here\n", end="", flush=True)
    batch = torch.randn(4 * MICROBATCHES, width, generator=torch.Generator().manual_seed(1))
    for step in range(STEPS):
        result = pipeline.step(batch, batch.roll(1, dims=-1).sin())
        if not dist.is_initialized() or dist.get_rank() == 0:
            print(f"step {step}: loss {result.loss:.9f}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 32)
