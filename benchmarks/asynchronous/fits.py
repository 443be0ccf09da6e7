"""The microbatch that fits: memory of a large BERT by formulas, and the throughput it allows.

    python benchmarks/asynchronous/fits.py [--json FILE]

96 layers of BERT-base on 8 devices, recomputed, in single precision with Adam. A layer saves
s b h (66 + 9 a s / h) bytes: as in arXiv 2205.05198, with values of four bytes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean

from formulas import Place, saved_recomputed, versions
from methods import MICROBATCHES, SIZES, Method, Model, cost, period
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from weft.lower import recompute

DEVICES = 8
MODEL = Model(layers=96)
SAVED = 128 * 768 * (66 + 9 * 12 * 128 // 768)  # bytes that a layer saves of a sample
OTHERS = 3  # gradients and the two moments of Adam, in copies of the weights
SCHEDULES = ("1f1b", "pipedream-2bw", "wpipe")
CAPACITIES = (4, 6, 8, 12, 16)  # GiB of a device
GIBI = 1 << 30


def held(schedule: str, size: int) -> list[float]:
    """GiB on each device."""
    share = MODEL.layers / DEVICES
    boundary = MODEL.boundary / (share * SAVED)
    found = []
    for device in range(DEVICES):
        place = Place(device, DEVICES, MICROBATCHES * DEVICES)
        copies = versions(schedule, place) + OTHERS
        activations = size * SAVED * saved_recomputed(schedule, place, boundary)
        found.append(share * (copies * MODEL.weights + activations) / GIBI)
    return found


def rate(schedule: str, size: int) -> float:
    """Samples per second, with links that take no time."""
    microbatches = MICROBATCHES * DEVICES
    program = recompute(Method(schedule).program(DEVICES, microbatches))
    return microbatches * size / period(program, cost(program, MODEL, size))


def largest(schedule: str, capacity: float) -> int:
    """The largest microbatch that fits on all devices; 0 where none does."""
    size = 0
    while max(held(schedule, size + 1)) <= capacity:
        size += 1
    return size


def main(arguments: argparse.Namespace) -> None:
    sizes = Table(
        "samples", *(f"{name} GiB" for name in SCHEDULES), "wpipe's saving", box=box.MARKDOWN
    )
    found: dict[str, list[dict[str, object]]] = {"sizes": [], "capacities": []}
    for size in SIZES:
        means = {name: mean(held(name, size)) for name in SCHEDULES}
        saving = 1 - means["wpipe"] / means["pipedream-2bw"]
        sizes.add_row(str(size), *(f"{one:.2f}" for one in means.values()), f"{saving:.0%}")
        found["sizes"].append({"size": size, **means, "saving": saving})
    fitting = Table("GiB", *SCHEDULES, "wpipe / 2bw", box=box.MARKDOWN)
    for capacity in track(CAPACITIES[:1] if arguments.quick else CAPACITIES, "simulating"):
        most = {name: largest(name, capacity) for name in SCHEDULES}
        rates = {name: rate(name, size) if size else 0.0 for name, size in most.items()}
        ratio = rates["wpipe"] / rates["pipedream-2bw"]
        cells = [f"{rates[name]:.0f} / s with {most[name]}" for name in SCHEDULES]
        fitting.add_row(str(capacity), *cells, f"{ratio:.2f}")
        found["capacities"].append({"capacity": capacity, "most": most, "rates": rates})
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    console = Console(width=160)
    console.print(sizes)
    console.print(fitting)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--quick", action="store_true", help="one capacity")
    main(parser.parse_args())
