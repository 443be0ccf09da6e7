"""Train a model of two towers, which run at the same time on devices of their own.

python examples/two_towers.py
torchrun --nproc-per-node 3 examples/two_towers.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

import weft
from weft.schedules import one_f_one_b

WIDTH, ROWS = 16, 32


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.images = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.words = nn.Sequential(nn.EmbeddingBag(64, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.head = nn.Linear(2 * WIDTH, 4)

    def forward(self, image: Tensor, ids: Tensor) -> Tensor:
        both = [self.images(image), self.words(ids)]
        return self.head(torch.cat(both, dim=-1))


def main() -> None:
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    batch = {"image": torch.randn(ROWS, WIDTH), "ids": torch.randint(64, (ROWS, 5))}
    labels = torch.randint(4, (ROWS,))
    stages = weft.split(TwoTowers(), stages=3, example=batch, branches=True)
    pipeline = weft.Pipeline(
        stages,  # 0: images, 1: words, 2: what reads both
        one_f_one_b(graph=stages.graph, devices=len(stages), microbatches=4),
        loss=nn.functional.cross_entropy,
        optimizer=lambda named: torch.optim.AdamW([weight for _, weight in named], lr=1e-2),
    )
    for step in range(10):
        result = pipeline.step(batch, labels)
        if not dist.is_initialized() or dist.get_rank() == 0:
            print(f"step {step}: loss {result.loss:.9f}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
