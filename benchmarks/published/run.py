"""What the simulator says of published runs, beside what was published.

    .venv/bin/python benchmarks/published/run.py

Prints the tables of docs/scale.md, which a test compares with it. Inputs are the papers' own;
what a paper does not say is named as assumed where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import steps

from weft.cost import DEVICES as KNOWN
from weft.cost import MODELS, Share, derive
from weft.ir.program import Program
from weft.lower import replicated
from weft.schedules import REGISTRY
from weft.simulate import simulate
from weft.timeline import Timeline

Rows = Iterator[Sequence[str]]


def timeline_of(schedule: str, share: Share, **shape: int) -> Timeline:
    program: Program = REGISTRY[schedule](**shape)
    return simulate(program, share.cost(program))


def off(found: float, published: float) -> str:
    """How far a figure is from what was published."""
    return f"{100 * (found / published - 1):+.1f} %"


# arXiv 2401.10241, Tables 5 and 6


class Bubbles(NamedTuple):
    """A row of both tables: milliseconds of F, B, W and a hop, and bubbles in the paper's words."""

    model: str
    devices: int
    microbatches: int
    milliseconds: tuple[float, float, float, float]
    chunks: int
    published: tuple[float, float, float, float]


ZERO_BUBBLE = (
    Bubbles("1.5B", 8, 24, (18.522, 18.086, 9.337, 0.601), 3, (0.2431, 0.1055, 0.1585, 0.1083)),
    Bubbles("1.5B", 8, 32, (18.513, 18.086, 9.331, 0.626), 3, (0.1985, 0.0818, 0.1242, 0.0837)),
    Bubbles("6.2B", 8, 24, (29.718, 29.444, 19.927, 0.527), 4, (0.2347, 0.0808, 0.1323, 0.0698)),
    Bubbles("6.2B", 8, 64, (29.935, 29.621, 19.388, 0.535), 4, (0.1091, 0.0320, 0.0554, 0.0294)),
    Bubbles("14.6B", 16, 48, (11.347, 11.248, 8.132, 0.377), 3, (0.2552, 0.1104, 0.1397, 0.0672)),
    Bubbles("14.6B", 16, 128, (11.325, 11.308, 8.109, 0.378), 3, (0.1251, 0.0445, 0.0576, 0.0266)),
    Bubbles("28.3B", 32, 96, (10.419, 10.207, 7.715, 0.408), 2, (0.2646, 0.1493, 0.1421, 0.0641)),
    Bubbles("28.3B", 32, 256, (10.402, 10.248, 7.698, 0.460), 2, (0.1352, 0.0624, 0.0594, 0.0257)),
)
SCHEDULES = ("1f1b", "interleaved-1f1b", "zb-h1", "zb-h2")


def zero_bubble() -> Rows:
    for row in ZERO_BUBBLE:
        cells = [row.model, f"{row.devices} x {row.microbatches}"]
        for schedule, published in zip(SCHEDULES, row.published, strict=True):
            found = _bubble(row, schedule)
            cells += [f"{found:.4f}", f"{published:.4f}"]
        yield cells


def _bubble(row: Bubbles, schedule: str) -> float:
    """1 - m (F + B + W) / T, as the paper counts."""
    *computed, hop = row.milliseconds
    shape = {"devices": row.devices, "microbatches": row.microbatches}
    if schedule == "interleaved-1f1b":
        shape["stages_per_device"] = row.chunks
    timeline = timeline_of(schedule, Share(*computed, latency=hop), **shape)
    return 1 - row.microbatches * sum(computed) / timeline.makespan


# arXiv 2505.09343, Table 4: DeepSeek-V3 on 2048 H800

STEP, BUBBLE, OPTIMIZER = 19.926, 2.06, 0.29  # seconds
FORWARD, INPUT_GRAD, WEIGHT_GRAD, PAIR = 0.0576, 0.084, 0.0417, 0.139  # its sums over the actions


def deepseek() -> Rows:
    for milliseconds in (0, 5, 10):
        share = Share(FORWARD, INPUT_GRAD, WEIGHT_GRAD, PAIR, latency=milliseconds / 1e3)
        timeline = timeline_of("dualpipe", share, devices=16, microbatches=120)
        step = timeline.makespan + OPTIMIZER
        idle = timeline.bubble.wall * timeline.makespan
        yield (
            f"{milliseconds} ms",
            f"{idle:.2f} s",
            off(idle, BUBBLE),
            f"{step:.2f} s",
            off(step, STEP),
        )


# arXiv 2104.04473, Table 1: Megatron on A100


class Grown(NamedTuple):
    """A row: billions of parameters, layers, devices of the pipeline, GPUs, batch, TFLOP/s."""

    size: str
    layers: int
    devices: int
    gpus: int
    batch: int
    rate: float


TENSOR = 8  # GPUs that share a stage
ALONE = 135.0  # TFLOP/s of the 18.4 B, which has no pipeline
MEGATRON = (
    Grown("39.1 B", 48, 2, 512, 1536, 138),
    Grown("76.1 B", 60, 4, 1024, 1792, 140),
    Grown("145.6 B", 80, 8, 1536, 2304, 148),
    Grown("310.1 B", 96, 16, 1920, 2160, 155),
    Grown("529.6 B", 105, 35, 2520, 2520, 163),
    Grown("1008 B", 128, 64, 3072, 3072, 163),
)
RECOMPUTED = Share(1.0, 2.0, 1.0)  # the backward computes F again


def megatron() -> Rows:
    for row in MEGATRON:
        microbatches = row.batch * TENSOR * row.devices // row.gpus
        found = []
        for chunks in (1, row.layers // row.devices):
            timeline = _interleaved(row.devices, microbatches, chunks)
            found.append(ALONE * (1 - timeline.bubble.wall))
        yield (
            row.size,
            f"{row.devices} x {microbatches}",
            *(f"{rate:.0f}" for rate in found),
            f"{row.rate:.0f}",
            *(off(rate, row.rate) for rate in found),
        )


def _interleaved(devices: int, microbatches: int, chunks: int) -> Timeline:
    if chunks == 1:
        return timeline_of("1f1b", RECOMPUTED, devices=devices, microbatches=microbatches)
    shape = {"devices": devices, "microbatches": microbatches, "stages_per_device": chunks}
    return timeline_of("interleaved-1f1b", RECOMPUTED, **shape)


# arXiv 2402.15627: 175 B, tensor 8, pipeline 8, 6 stages on each device

DEVICES, CHUNKS = 8, 6
SCALED = {
    768: {256: (40.0, 32.0), 512: (21.2, 16.5), 768: (15.2, 11.5), 1024: (11.9, 8.9)},
    6144: {3072: (29.02, 23.66), 6144: (14.78, 12.21), 8192: (12.24, 9.56), 12288: (8.57, 6.34)},
}


def megascale() -> Rows:
    """The first row of each batch gives the seconds of a microbatch; all others follow from it."""
    for batch, by_gpus in SCALED.items():
        first = min(by_gpus)
        start = _pipeline(batch, first)
        for gpus, seconds in by_gpus.items():
            cells = [str(batch), str(gpus), str(_microbatches(batch, gpus))]
            for system in range(2):
                found = by_gpus[first][system] * _pipeline(batch, gpus) / start
                error = "given" if gpus == first else off(found, seconds[system])
                cells += [f"{found:.2f}", f"{seconds[system]:.2f}", error]
            yield cells


def _microbatches(batch: int, gpus: int) -> int:
    return batch * TENSOR * DEVICES // gpus


def _pipeline(batch: int, gpus: int) -> float:
    return _interleaved(DEVICES, _microbatches(batch, gpus), CHUNKS).makespan


# bytes: GPT of 6.2 billion parameters, two replicas of 8 devices with 32 microbatches each

TRAFFIC = (0, 3, 7)


def traffic() -> Rows:
    program = replicated(REGISTRY["1f1b"](devices=8, microbatches=32), 2)
    cost = derive(program, MODELS["gpt-6.2b"], KNOWN["a100"])
    needs, crossing = program.dependencies, program.crossing
    ends = np.stack([program.device_of[needs.producer], program.device_of[needs.consumer]])[
        :, crossing
    ]
    for device in TRAFFIC:
        stage = device
        for other, what in ((device + 1, "activations"), (device - 1, "gradients")):
            count = int(((ends[0] == device) & (ends[1] == other)).sum())
            if count:
                size = MODELS["gpt-6.2b"].message_bytes
                yield _sent(device, other, what, count, size)
        yield _sent(device, device + 8, "gradients of weights", 1, cost.memory.gradients[stage])


def _sent(device: int, other: int, what: str, count: int, size: float) -> Sequence[str]:
    cells = (f"{count} x {size / 1e6:.1f} MB", f"{count * size / 1e9:.2f} GB")
    return (f"{device} to {other}", what, *cells)


# whole steps, by the sizes of the model and the data sheet of its device


def whole_megatron() -> Rows:
    rows = [*steps.grown()]
    (given,) = (row for row in rows if row.size == steps.CALIBRATED)
    share = given.run.share()
    for row in rows:
        run = row.run
        derived, found = (row.work / run.predicted(part) / run.gpus / 1e12 for part in (1.0, share))
        error = "given" if row is given else off(found, row.rate)
        shape = f"{run.devices} x {run.microbatches}"
        rates = (f"{rate:.0f}" for rate in (derived, found, row.rate))
        yield row.size, str(run.layout.tensor), shape, *rates, error


def whole_megascale() -> Rows:
    for batch, by_gpus in steps.MEGASCALE.items():
        first = min(by_gpus)
        shares = [steps.scaled(batch, first, system).share() for system in range(2)]
        for gpus in by_gpus:
            cells = [str(batch), str(gpus), f"{steps.scaled(batch, gpus, 0).predicted():.2f}"]
            for system, share in enumerate(shares):
                run = steps.scaled(batch, gpus, system)
                found = run.predicted(share)
                error = "given" if gpus == first else off(found, run.seconds)
                cells += [f"{found:.2f}", f"{run.seconds:.2f}", error]
            yield cells


def whole_hopper() -> Rows:
    for name, run in steps.HOPPER.items():
        found = run.predicted()
        yield name, f"{found:.2f}", f"{run.seconds:.2f}", off(found, run.seconds)


# tables


TABLES: dict[str, tuple[Sequence[str], Callable[[], Rows]]] = {
    "Zero Bubble": (
        ("model", "D x N", *(cell for name in SCHEDULES for cell in (name, "published"))),
        zero_bubble,
    ),
    "DeepSeek-V3": (("exposed per hop", "bubble", "of 2.06 s", "step", "of 19.926 s"), deepseek),
    "Megatron": (
        ("model", "D x N", "1 stage each", "1 layer each", "published", "error", "error"),
        megatron,
    ),
    "Traffic": (("devices", "what", "messages of a step", "together"), traffic),
    "MegaScale": (
        (
            *("batch", "GPUs", "N"),
            *("Megatron s", "published", "error", "MegaScale s", "published", "error"),
        ),
        megascale,
    ),
    "Whole steps, Megatron": (
        ("model", "tensor", "D x N", "derived TFLOP/s", "predicted", "published", "error"),
        whole_megatron,
    ),
    "Whole steps, MegaScale": (
        (
            *("batch", "GPUs", "derived s"),
            *("Megatron s", "published", "error", "MegaScale s", "published", "error"),
        ),
        whole_megascale,
    ),
    "Whole steps, Hopper": (("run", "derived s", "published s", "error"), whole_hopper),
}


@cache
def rows_of(name: str) -> tuple[Sequence[str], ...]:
    """One of them without its head."""
    _, rows = TABLES[name]
    return tuple(rows())


def table(name: str) -> str:
    """One of them in Markdown."""
    head, _ = TABLES[name]
    lines = [head, ["---"] * len(head), *rows_of(name)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    for name in TABLES:
        print(f"{name}\n\n{table(name)}\n")
