"""Devices whose figures are public or were measured, each with where they stand.

Vendors count links both ways together and products with zeros skipped: both are halved here.
"""

from __future__ import annotations

from dataclasses import replace

from weft.cost.cost import Link
from weft.cost.device import Device, Point
from weft.cost.mapping import named

# arXiv 2505.09343, Table 5, end to end for 64 bytes: NVLink, and InfiniBand across leaves.
_NVLINK_LATENCY, _WIRE_LATENCY = 3.33e-6, 3.7e-6

# H200, PyTorch 2.11, bf16, random data (benchmarks/costs): products of n x n matrices in TFLOP/s,
# and causal attention, forward, by its FLOPs (32 heads of 128; 1,024 to 16,384 tokens).
_HOPPER_PEAK = 989.4e12
_HOPPER_PRODUCTS = {
    256: 1.56,
    512: 12.1,
    1024: 96.5,
    2048: 448.5,
    4096: 698.0,
    8192: 746.1,
    16384: 688.5,
}
_HOPPER_MATMUL = tuple((2.0 * n**3, rate * 1e12) for n, rate in _HOPPER_PRODUCTS.items())
_H200_ATTENTION = (
    (8.59e9, 157.5e12),
    (3.44e10, 302.8e12),
    (1.37e11, 464.0e12),
    (5.50e11, 597.7e12),
    (2.20e12, 577.1e12),
)

# FlashAttention-2 reaches 35 % on an H100 (arXiv 2407.08608, abstract; version 3 up to 75 %) and
# 50 to 73 % on an A100 (arXiv 2307.08691, abstract).
_HOPPER_ATTENTION, _AMPERE_ATTENTION = 0.35, 0.5


def _hopper_points(
    rates: tuple[tuple[float, float], ...], *, is_measured: bool
) -> tuple[Point, ...]:
    return tuple(Point(flops, rate / _HOPPER_PEAK, is_measured) for flops, rate in rates)


_H100 = Device(
    peak=_HOPPER_PEAK,
    bandwidth=3.35e12,
    memory=80e9,
    host=Link(bandwidth=64e9),
    near=Link(_NVLINK_LATENCY, 450e9),
    far=Link(_WIRE_LATENCY, 50e9),
    per_node=8,
    matmul=_hopper_points(_HOPPER_MATMUL, is_measured=False),
    attention=(Point(1.0, _HOPPER_ATTENTION),),
    source=(
        "NVIDIA's H100 SXM data sheet: 1,979 TFLOP/s with zeros skipped, 80 GB at 3.35 TB/s, NVLink"
        " 900 GB/s, PCIe 128 GB/s; DGX H100: 8 of them, 400 Gb/s each. Products as on an H200;"
        " latencies arXiv 2505.09343, Table 5, of its H800s"
    ),
)

_H200 = replace(
    _H100,
    bandwidth=4.8e12,
    memory=141e9,
    host=Link(bandwidth=55e9),
    matmul=_hopper_points(_HOPPER_MATMUL, is_measured=True),
    attention=_hopper_points(_H200_ATTENTION, is_measured=True),
    source=(
        "NVIDIA's H200 SXM data sheet: as the H100, but 141 GB at 4.8 TB/s. Measured for Weft:"
        " products, attention, and 55 GB/s to and from the host (benchmarks/costs)"
    ),
)

_H800 = replace(
    _H100,
    near=Link(_NVLINK_LATENCY, 160e9),
    source=(
        "an H100 but for its NVLink: 160 GB/s in practice against 50 GB/s between nodes"
        " (arXiv 2412.19437, section 3.2.2)"
    ),
)

_A100 = Device(
    peak=312e12,
    bandwidth=2.039e12,
    memory=80e9,
    host=Link(bandwidth=32e9),
    near=Link(_NVLINK_LATENCY, 300e9),
    far=Link(_WIRE_LATENCY, 25e9),
    per_node=8,
    attention=(Point(1.0, _AMPERE_ATTENTION),),
    source=(
        "NVIDIA's A100 80GB SXM data sheet: 312 TFLOP/s, 80 GB at 2,039 GB/s, NVLink 600 GB/s,"
        " PCIe 64 GB/s; DGX A100: 8 of them, 200 Gb/s each. No table: products at the peak;"
        " latencies assumed as on an H100"
    ),
)

# One core of an AMD EPYC (family 25, model 17), torch 2.13 with one thread, fp32, the best of at
# least 5 runs: `torch.mm` of n x n matrices, in GFLOP/s. The peak is the best of them.
_CPU_MATMUL = ((64, 76.9), (128, 97.8), (256, 103.5), (512, 101.2), (1024, 98.3), (2048, 95.2))
_CPU_PEAK = 103.5e9
# `scaled_dot_product_attention`, causal, 8 heads of 64, 256 and 1024 tokens: FLOPs, GFLOP/s.
_CPU_ATTENTION = ((6.71e7, 39.7), (1.07e9, 55.9))

_CPU = Device(
    peak=_CPU_PEAK,
    bandwidth=31.8e9,
    near=Link(98e-6, 2e9),
    far=Link(98e-6, 2e9),
    matmul=tuple(Point(2.0 * n**3, rate * 1e9 / _CPU_PEAK, True) for n, rate in _CPU_MATMUL),
    attention=tuple(Point(flops, rate * 1e9 / _CPU_PEAK, True) for flops, rate in _CPU_ATTENTION),
    source=(
        "measured for Weft on one core of an AMD EPYC, fp32: products, attention, a copy's"
        " bandwidth; processes on one machine over gloo: half a round trip of 196 us, 32 MB in"
        " 10 to 24 ms"
    ),
)

DEVICES: dict[str, Device] = {
    "a100": _A100,
    "h100": _H100,
    "h200": _H200,
    "h800": _H800,
    "cpu": _CPU,
}


def device_named(name: str) -> Device:
    """The preset of that name; InputError names the nearest."""
    return named(DEVICES, name, "device")
