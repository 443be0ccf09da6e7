"""What products, attention and copies really reach on a GPU: the points of a device preset.

    python benchmarks/costs/measure.py > points.json

Needs torch with CUDA. Medians over repeats timed with CUDA events, after a warm-up; products of
n x n matrices and causal attention, forward, in bf16.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

REPEATS = 20


def milliseconds(job: Callable[[], object]) -> float:
    for _ in range(5):
        job()
    taken = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        job()
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end))
    return statistics.median(taken)


def product(size: int) -> dict[str, float]:
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    taken = milliseconds(lambda: a @ b)
    flops = 2 * size**3
    return {"size": size, "flops": flops, "ms": taken, "tflops": flops / taken / 1e9}


def attention(sequence: int, heads: int = 32, head_dim: int = 128) -> dict[str, float]:
    shape = (1, heads, sequence, head_dim)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    taken = milliseconds(lambda: scaled_dot_product_attention(q, k, v, is_causal=True))
    flops = 4 * heads * head_dim * sequence**2 / 2
    return {"sequence": sequence, "flops": flops, "ms": taken, "tflops": flops / taken / 1e9}


def copy(mebibytes: int, *, is_home: bool) -> dict[str, float]:
    host = torch.empty(mebibytes << 20, dtype=torch.uint8, pin_memory=True)
    device = torch.empty_like(host, device="cuda")
    taken = milliseconds(
        (lambda: device.copy_(host, non_blocking=True))
        if is_home
        else (lambda: host.copy_(device, non_blocking=True))
    )
    return {"mebibytes": mebibytes, "gb_per_s": (mebibytes << 20) / taken / 1e6}


def main() -> None:
    result = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "products": [product(size) for size in (256, 512, 1024, 2048, 4096, 8192, 16384)],
        "attention": [attention(length) for length in (1024, 2048, 4096, 8192, 16384)],
        "to_host": [copy(size, is_home=False) for size in (1, 16, 256, 1024)],
        "from_host": [copy(size, is_home=True) for size in (1, 16, 256, 1024)],
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
