"""Samples per second of 64 devices against the size of a microbatch, simulated.

    python benchmarks/asynchronous/simulated.py [--ranks 4 8 16 32 64] [--json FILE]

384 layers, four times those of `throughput.py`. Links are free, or take 20 µs and carry 12.5 GB/s.
Then replicas sum their gradients by a ring all-reduce for which everybody waits, whatever the
method. The second table has the share of time that devices work, by the latency of a link.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from methods import BACKWARD, METHODS, MICROBATCHES, SIZES, Links, Method, Model, cost, period
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

DEVICES = 64  # of all replicas
RANKS = (4, 8, 16, 32, 64)
MODEL = Model(layers=384)
LINKS = {"free": Links(), "100 Gb/s": Links(20e-6, 12.5e9)}
LATENCIES = (0.0, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6)
SIZE = 8  # of a microbatch, where the latency changes


class Rate(NamedTuple):
    """Samples per second of one method."""

    links: str
    ranks: int
    size: int
    method: str
    rate: float


class Use(NamedTuple):
    """The share of time that devices work, with links of this latency and any bandwidth."""

    ranks: int
    latency: float
    method: str
    share: float


def rate(links: str, ranks: int, size: int, method: Method) -> Rate:
    replicas, microbatches = DEVICES // ranks, MICROBATCHES * ranks
    program = method.program(ranks, microbatches)
    taken = period(program, cost(program, MODEL, size, LINKS[links]))
    weights = MODEL.layers * MODEL.weights / ranks
    taken += LINKS[links].reduction(weights, replicas)
    return Rate(links, ranks, size, method.name, replicas * microbatches * size / taken)


def use(ranks: int, latency: float, method: Method) -> Use:
    """Where it flushes, of a whole step."""
    program = method.program(ranks, MICROBATCHES * ranks)
    costs = cost(program, MODEL, SIZE, Links(latency))
    work = MICROBATCHES * (1 + BACKWARD) * MODEL.forward(SIZE)  # of a device
    return Use(ranks, latency, method.name, work / period(program, costs))


def rates(arguments: argparse.Namespace) -> Iterator[Rate]:
    for one in product(LINKS, arguments.ranks, arguments.sizes, METHODS):
        yield rate(*one)


def uses(arguments: argparse.Namespace) -> Iterator[Use]:
    for one in product(arguments.ranks, LATENCIES, METHODS):
        yield use(*one)


def tabled(rows: list[Any], digits: int) -> Table:
    """A line for each setting, a column for each method."""
    *names, _, _ = type(rows[0])._fields
    table = Table(*names, *(method.name for method in METHODS), box=box.MARKDOWN)
    lines: dict[tuple[Any, ...], list[str]] = {}
    for *place, _, value in rows:
        lines.setdefault(tuple(place), []).append(f"{value:.{digits}f}")
    for place, cells in lines.items():
        table.add_row(
            *(f"{p * 1e6:.0f} µs" if isinstance(p, float) else str(p) for p in place), *cells
        )
    return table


def main(arguments: argparse.Namespace) -> None:
    console = Console(width=200)
    found: dict[str, list[Any]] = {"rates": [], "uses": []}
    saved = time.monotonic()
    with Progress(console=console) as progress:
        settings = len(arguments.ranks) * len(METHODS)
        total = settings * (len(LINKS) * len(arguments.sizes) + len(LATENCIES))
        bar = progress.add_task("simulating", total=total)
        for kind, rows in (("rates", rates(arguments)), ("uses", uses(arguments))):
            for row in rows:
                found[kind].append(row)
                progress.update(bar, advance=1, description=f"{row.ranks} ranks, {row.method}")
                if time.monotonic() > saved + 1:
                    saved = save(arguments, found)
    save(arguments, found)
    console.print(tabled(found["rates"], 0))
    console.print(tabled(found["uses"], 3))


def save(arguments: argparse.Namespace, found: dict[str, list[Any]]) -> float:
    """Write what there is; when that was."""
    if arguments.json:
        document = {kind: [row._asdict() for row in rows] for kind, rows in found.items()}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return time.monotonic()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[*RANKS], help="of a pipeline")
    parser.add_argument("--sizes", type=int, nargs="+", default=[*SIZES], help="of a microbatch")
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--quick", action="store_true", help="4 ranks, sizes 1 and 64")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.ranks, arguments.sizes = [4], [1, 64]
    return arguments


if __name__ == "__main__":
    main(parsed())
