"""Train a Hugging Face model: a small GPT-2 from a config, or any from a checkpoint folder.

    python examples/huggingface.py
    torchrun --nproc-per-node 2 examples/huggingface.py path/to/checkpoint

Both ways of starting it print the same losses, to the last bit.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, GPT2Config

import weft
from weft.schedules import one_f_one_b

DEVICES, MICROBATCHES, STEPS = 2, 4, 5
SMALL = {"n_layer": 4, "n_embd": 32, "n_head": 2, "vocab_size": 64, "n_positions": 32}


def main(folder: str | None) -> None:
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)  # all ranks start from the same weights
    if folder is None:
        model = AutoModelForCausalLM.from_config(GPT2Config(**SMALL))
    else:
        model = AutoModelForCausalLM.from_pretrained(folder)
    pipeline = weft.Pipeline(
        weft.split(model.train(), stages=DEVICES),  # with the model's own loss
        one_f_one_b(devices=DEVICES, microbatches=MICROBATCHES),
        optimizer=lambda named: torch.optim.AdamW([weight for _, weight in named], lr=1e-2),
    )
    ids = torch.randint(model.config.vocab_size, (8, 16))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    for step in range(STEPS):
        result = pipeline.step(batch, ids)
        if not dist.is_initialized() or dist.get_rank() == 0:
            print(f"step {step}: loss {result.loss:.9f}")
    pipeline.close()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
