"""How fast Weft writes, times, proves and draws a schedule; everything from one run.

    .venv/bin/python benchmarks/simulator/run.py [--rounds 7] [--json FILE]

Contenders are run in turn, round by round, so that a busy machine slows both; figures are
medians over the rounds, and claims about others are ratios of the same rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from weft.ir import earliest as machine
from weft.ir.earliest import Precedence
from weft.ir.program import Program
from weft.schedules import interleaved_1f1b
from weft.simulate import simulate
from weft.verify import verify

Job = Callable[[], object]


def seconds(job: Job) -> float:
    gc.collect()
    before = time.perf_counter()
    job()
    return time.perf_counter() - before


def medians(jobs: dict[str, Job], rounds: int) -> dict[str, float]:
    """Median seconds of each job; the jobs take turns."""
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    for job in jobs.values():
        job()
    for _ in range(rounds):
        for name, job in jobs.items():
            taken[name].append(seconds(job))
    return {name: statistics.median(times) for name, times in taken.items()}


def interleaved(devices: int, microbatches: int) -> Program:
    return interleaved_1f1b(devices=devices, microbatches=microbatches, stages_per_device=4)


def timed(devices: int, microbatches: int) -> None:
    """Generated, timed, and with memory by category over time."""
    timeline = simulate(interleaved(devices, microbatches))
    assert timeline.memory.peaks
    assert timeline.peak_activations


def torch_spacing() -> None:
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

    with Path(os.devnull).open("w") as silent, contextlib.redirect_stdout(silent):
        get_schedule_ops("Interleaved1F1B", 16, 256, 4, add_spacing=True)


def cold_start() -> None:
    command = [sys.executable, "-m", "weft", "draw", "1f1b", "-d", "4", "-n", "8"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def sizes(rounds: int) -> list[tuple[str, float, str]]:
    rows = []
    for devices, microbatches in ((16, 256), (64, 512), (64, 2048)):
        actions = 2 * devices * microbatches * 4
        whole = medians({"": lambda d=devices, n=microbatches: timed(d, n)}, rounds)[""]
        label = (
            f"generate + simulate + memory, {devices} x {microbatches} x 4 ({actions:,} actions)"
        )
        rows.append((label, whole, f"{actions / whole / 1e6:.1f} M actions/s"))
    program = interleaved(64, 2048)
    alone = medians({"": lambda: simulate(program)}, rounds)[""]
    rows.append((
        "simulate alone, 64 x 2048 x 4, dependencies known",
        alone,
        f"{len(program) / alone / 1e6:.1f} M actions/s",
    ))  # fmt: skip
    return rows


def against_torch(rounds: int) -> list[tuple[str, float, str]]:
    jobs: dict[str, Job] = {"weft": lambda: timed(16, 256), "torch": torch_spacing}
    found = medians(jobs, rounds)
    ratio = found["torch"] / found["weft"]
    return [
        ("torch add_spacing, interleaved 16 x 256 x 4", found["torch"], ""),
        ("weft, the same with costs and memory", found["weft"], f"{ratio:.0f} times faster"),
    ]


def proof_and_picture(rounds: int) -> list[tuple[str, float, str]]:
    def prove() -> None:
        assert verify(interleaved(16, 256)).is_valid

    return [
        ("generate + verify every rule, 16 x 256 x 4", medians({"": prove}, rounds)[""], ""),
        ("weft draw 1f1b -d 4 -n 8, new process", medians({"": cold_start}, rounds)[""], ""),
    ]


def crossover(rounds: int) -> list[tuple[str, float, str]]:
    """Where one vector step over all lanes pays against lane by lane (`earliest.WIDE`)."""
    rows = []
    for lanes in (4, 8, 12, 16, 32, 64):
        program = interleaved(lanes, 4 * lanes)
        precedence = program.precedence(np.zeros(len(program.dependencies)))

        def run(wide: int, precedence: Precedence = precedence) -> None:
            machine.WIDE = wide
            machine.earliest(precedence, np.ones(precedence.slots))

        kept = machine.WIDE
        found = medians({"narrow": lambda: run(10**9), "wide": lambda: run(0)}, rounds)
        machine.WIDE = kept
        ratio = f"{found['narrow'] / found['wide']:.2f} times the wide one"
        rows.append((f"lane by lane, {lanes} lanes", found["narrow"], ratio))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for part in (sizes, against_torch, proof_and_picture, crossover):
        for label, taken, remark in part(arguments.rounds):
            print(f"{label:75} {taken * 1e3:9.1f} ms  {remark}", flush=True)
            rows.append({"what": label, "seconds": taken, "remark": remark})
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
