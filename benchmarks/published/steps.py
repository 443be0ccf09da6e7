"""Whole steps of published runs, derived from a model and a device: sums and updates included.

A derived step is a bound: launches, imbalance and stragglers take what it leaves out. One run of a
table says how much slower the devices compute than that; all other runs of the table are then
predicted, from their sizes alone. Links are as fast as their vendor says, throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache

from weft.cost import (
    DEVICES,
    MODELS,
    Derivation,
    Device,
    Layout,
    Point,
    Storage,
    Transformer,
    derive,
    flops,
)
from weft.ir.graph import Graph
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.lower import recompute, updates
from weft.schedules import REGISTRY
from weft.simulate import simulate

_ACCURACY = 1e-6  # of seconds, where a device is slowed to fit a run


@dataclass(frozen=True, kw_only=True)
class Run:
    """A published run: what was trained how, and the seconds of a step that were found.

    batch  sequences of a step of all replicas, one in each microbatch
    """

    model: Transformer
    device: Device
    devices: int
    stages_per_device: int = 1
    batch: int
    layout: Layout
    storage: Storage = field(default_factory=Storage)
    schedule: str = "interleaved-1f1b"
    is_recomputed: bool = False
    seconds: float

    @property
    def gpus(self) -> int:
        return self.devices * self.layout.tensor * self.layout.copies

    @property
    def microbatches(self) -> int:
        """Of one pipeline."""
        return self.batch // self.layout.copies

    def predicted(self, share: float = 1.0) -> float:
        """Seconds of a step, where devices compute at this share of what they could."""
        slowed = replace(
            self.device, peak=share * self.device.peak, bandwidth=share * self.device.bandwidth
        )
        program = _program(
            self.schedule, self.devices, self.microbatches, self.stages_per_device,
            self.is_recomputed,
        )  # fmt: skip
        derivation = Derivation(
            model=self.model, device=slowed, layout=self.layout, storage=self.storage
        )
        has_copies = self.layout.copies > 1
        whole = updates(
            program,
            is_sharded=has_copies and self.layout.is_sharded,
            is_replicated=has_copies,
        )
        return simulate(whole, derivation.cost(program)).makespan

    def share(self) -> float:
        """What the devices of this run compute of what they could: predicted by it, it fits."""
        return _solved(lambda slowness: self.predicted(1 / slowness), self.seconds)


@cache
def _program(
    schedule: str, devices: int, microbatches: int, stages_per_device: int, is_recomputed: bool
) -> Program:
    shape = {"devices": devices, "microbatches": microbatches}
    if stages_per_device > 1:
        shape["stages_per_device"] = stages_per_device
    elif schedule == "interleaved-1f1b":
        schedule = "1f1b"
    program: Program = REGISTRY[schedule](**shape)
    return recompute(program) if is_recomputed else program


def _solved(seconds: Callable[[float], float], wanted: float) -> float:
    """Where a function that is nearly a line reaches a value: the secants' way."""
    low, high = 1.0, 2.0
    at_low, at_high = seconds(low), seconds(high)
    while abs(at_high / wanted - 1) > _ACCURACY:
        new = high + (wanted - at_high) * (high - low) / (at_high - at_low)
        low, at_low, high, at_high = high, at_high, new, seconds(new)
    return 1 / high


# A100s: what their products reach is what W, which is products alone, took in Zero Bubble

_WEIGHT_GRADS = {  # arXiv 2401.10241, Table 6: devices, milliseconds of W
    "gpt-1.5b": (8, 9.337),
    "gpt-6.2b": (8, 19.927),
    "gpt-14.6b": (16, 8.132),
    "gpt-28.3b": (32, 7.715),
}


@cache
def a100() -> Device:
    """The preset, whose products reach the peak, with those of Zero Bubble: 76 to 81 % of it."""
    best, device = [], DEVICES["a100"]
    for name, (devices, milliseconds) in _WEIGHT_GRADS.items():
        placed = (Graph.chain(devices), Placement.straight(devices))
        bound = derive(placed, MODELS[name], device).times.weight_grad[1]
        best.append(1e3 * bound / milliseconds)
    return replace(device, matmul=(Point(1.0, sum(best) / len(best)),))


# arXiv 2104.04473, Table 1: Megatron on A100s, all activations recomputed, in fp16


@dataclass(frozen=True)
class Grown:
    """A row: billions of parameters, and what it was measured as."""

    size: str
    run: Run
    work: float  # FLOPs of a step as the paper counts them: recomputed ones too, and no mask
    rate: float  # TFLOP/s of a GPU


_GROWN = (  # size, heads, hidden, layers, tensor, devices, GPUs, batch, TFLOP/s
    ("1.7 B", 24, 2304, 24, 1, 1, 32, 512, 137),
    ("3.6 B", 32, 3072, 30, 2, 1, 64, 512, 138),
    ("7.5 B", 32, 4096, 36, 4, 1, 128, 512, 142),
    ("18.4 B", 48, 6144, 40, 8, 1, 256, 1024, 135),
    ("39.1 B", 64, 8192, 48, 8, 2, 512, 1536, 138),
    ("76.1 B", 80, 10240, 60, 8, 4, 1024, 1792, 140),
    ("145.6 B", 96, 12288, 80, 8, 8, 1536, 2304, 148),
    ("310.1 B", 128, 16384, 96, 8, 16, 1920, 2160, 155),
    ("529.6 B", 128, 20480, 105, 8, 35, 2520, 2520, 163),
    ("1008 B", 160, 25600, 128, 8, 64, 3072, 3072, 163),
)
CALIBRATED = "18.4 B"  # the largest without a pipeline


def grown() -> Iterator[Grown]:
    """Two stages on a device of a pipeline, three where layers do not divide by that: assumed."""
    for size, heads, hidden, layers, tensor, devices, gpus, batch, rate in _GROWN:
        model = _gpt(layers, heads, hidden, vocabulary=51200)
        work = 96 * batch * model.sequence * layers * hidden**2
        work *= 1 + model.sequence / 6 / hidden + model.vocabulary / 16 / layers / hidden
        yield Grown(
            size,
            Run(
                model=model,
                device=a100(),
                devices=devices,
                stages_per_device=1 if devices == 1 else 2 + layers // devices % 2,
                batch=batch,
                layout=Layout(tensor=tensor, replicas=gpus // (tensor * devices), is_sharded=False),
                storage=Storage(gradients=2.0),
                is_recomputed=True,
                seconds=work / (rate * 1e12 * gpus),
            ),
            work,
            rate,
        )


def _gpt(layers: int, heads: int, hidden: int, vocabulary: int) -> Transformer:
    sizes = {"layers": layers, "heads": heads, "hidden": hidden, "ffn": 4 * hidden}
    derived = {"head_dim": 0, "kv_heads": 0, "vocabulary": vocabulary}
    return replace(MODELS["gpt-145.6b"], **sizes, **derived, source="")  # type: ignore[arg-type]


# arXiv 2402.15627: 175 B, tensor 8, pipeline 8, 6 stages on each device, on A100s

MEGASCALE = {  # batch, GPUs: seconds of Megatron-LM and of MegaScale
    768: {256: (40.0, 32.0), 512: (21.2, 16.5), 768: (15.2, 11.5), 1024: (11.9, 8.9)},
    6144: {3072: (29.02, 23.66), 6144: (14.78, 12.21), 8192: (12.24, 9.56), 12288: (8.57, 6.34)},
}


def scaled(batch: int, gpus: int, system: int) -> Run:
    """Nothing recomputed, optimizer state sharded, a vocabulary of 64,000: the last two its own."""
    return Run(
        model=_gpt(96, 128, 12288, vocabulary=64000),
        device=a100(),
        devices=8,
        stages_per_device=6,
        batch=batch,
        layout=Layout(tensor=8, replicas=gpus // 64),
        seconds=MEGASCALE[batch][gpus][system],
    )


# Hopper, whose products are measured, if on an H200


def llama(gpus: int, sequences: int, rate: float) -> Run:
    """arXiv 2407.21783, Table 4: Llama 3 405B on H100s, with this many sequences of a replica.

    Four stages on a device, the first and the last with one layer less: assumed.
    """
    model, stages, tensor, devices = MODELS["llama-3-405b"], 64, 8, 16
    each = 2
    return Run(
        model=model,
        device=DEVICES["h100"],
        devices=devices,
        stages_per_device=stages // devices,
        batch=sequences * gpus // (tensor * devices),
        layout=Layout(
            tensor=tensor,
            replicas=gpus // (tensor * devices),
            layers=(each - 1, *(each,) * (stages - 2), each - 1),
        ),
        seconds=sequences * flops(model) / (rate * 1e12 * tensor * devices),
    )


def deepseek() -> Run:
    """arXiv 2505.09343, Table 4: DeepSeek-V3 on 2048 H800s, experts over 64 of them."""
    return Run(
        model=MODELS["deepseek-v3"],
        device=DEVICES["h800"],
        devices=16,
        batch=15360,
        layout=Layout(experts=64, replicas=2),
        schedule="dualpipe",
        seconds=19.926,
    )


HOPPER = {
    "Llama 3 405B, 8192 H100": llama(8192, 32, 430),
    "Llama 3 405B, 16384 H100": llama(16384, 16, 400),
    "DeepSeek-V3, 2048 H800": deepseek(),
}
