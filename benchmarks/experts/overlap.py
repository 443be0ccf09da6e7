"""Steps of layers whose durations are known, on expert ranks, against their simulation.

    python benchmarks/experts/overlap.py [--ranks 4 8] [--steps 15] [--json FILE]

Two replicas of a pipeline share the experts of every layer: 4 ranks are 2 devices twice, 8 are 4
devices twice. Attention and experts take 20 ms in F and in I each, an exchange of tokens 15 ms, W
20 ms. All programs of a row take a step in turn, in the same processes.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from borrowed import WARM_UP, Watch, estimate, machine, median, meet, run
from known_layers import KNOWN, WIDTH, Layer, Seconds, cost
from rich import box
from rich.console import Console
from rich.table import Table

from weft.ir.kinds import Kind, Part
from weft.ir.program import Program
from weft.lower import executable, experts, replicated, split, unpaired
from weft.runtime import Pipeline
from weft.runtime.experts import ExpertRanks
from weft.runtime.result import Result
from weft.schedules import interleaved_1f1b, kimi_k2
from weft.simulate import simulate

GROUP, STAGES, MICROBATCHES, ROWS = 2, 2, 8, 4
STEPS = 15
IN_TURN = "of the same in turn"
ALONE = "+1, W after the send, one after the other"  # the same segments, none beside another
COLUMNS = ("ranks", "program", "simulated ms", "measured ms", "ratio", "by segments", IN_TURN)


class Setting(NamedTuple):
    """A row of ranks."""

    ranks: int

    @property
    def devices(self) -> int:
        """Of one replica."""
        return self.ranks // GROUP


def programs(devices: int) -> dict[str, Program]:
    """With and without one more warm-up, which pairs need; with W after the send, or before it."""
    shape = {"devices": devices, "microbatches": MICROBATCHES, "stages_per_device": STAGES}
    k2, plain = partial(kimi_k2, **shape), interleaved_1f1b(**shape)
    found = {
        "+1, W after the send (K2)": experts(k2()),
        "+1, W before the send": experts(k2(variant="send-after-w")),
        "+1, W after the send, paired ends": experts(k2(variant="paired-ends")),
        ALONE: unpaired(k2()),
        "no +1, W after the send": split(plain),
        "no +1, W before the send": plain,
    }
    return {name: replicated(one, GROUP, expert_ranks=GROUP) for name, one in found.items()}


# in a rank


def job(setting: Setting, arguments: argparse.Namespace, tell: Watch) -> dict[str, Any]:
    """Seconds of the steps of every program, by name; and of its segments."""
    mine = dist.get_rank() % setting.devices
    groups = [
        dist.new_group([device + setting.devices * one for one in range(GROUP)])
        for device in range(setting.devices)
    ]
    group = ExpertRanks(groups[mine])
    pipelines = {
        name: _pipeline(program, group) for name, program in programs(setting.devices).items()
    }
    found: dict[str, Any] = {"steps": defaultdict(list), "segments": defaultdict(list)}
    for step in range(WARM_UP + arguments.steps):
        for name, pipeline in pipelines.items():
            meet()
            result = pipeline.step(*_batch(pipeline.program))
            timeline = pipeline.gathered(result)
            if step >= WARM_UP:
                found["steps"][name].append(timeline.makespan)
                for segment, seconds in _segments(result):
                    found["segments"][segment].append(seconds)
        tell()
    for pipeline in pipelines.values():
        pipeline.close()
    middle = {name: float(np.median(runs)) for name, runs in found["segments"].items()}
    return {"steps": dict(found["steps"]), "segments": middle}


def _pipeline(program: Program, group: ExpertRanks) -> Pipeline:
    stages = [Layer(group) for _ in range(program.stages)]
    return Pipeline(stages, program, loss=_loss, cost=cost(program.stages))


def _loss(output: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return output.sum()


def _batch(program: Program) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.zeros(ROWS * program.microbatches, WIDTH)
    return rows, rows


def _segments(result: Result) -> Iterator[tuple[str, float]]:
    """What took how long, but for the first stage, which finds no gradient of its input."""
    for span in result.spans():
        action = span.action
        if action.segment is not None and action.stage and action.kind in (Kind.F, Kind.I):
            part = Part(action.segment % len(Part))
            yield f"{action.kind.name} {part.name.lower()}", span.seconds
        elif action.kind is Kind.W:
            yield "W", span.seconds


# the report


def rows(arguments: argparse.Namespace, ranks: int) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """A line of the table for each program, and what the JSON file says of it."""
    setting, console = Setting(ranks), Console(stderr=True)
    by_rank = run(job, setting, arguments, lambda: console.print(".", end=""))  # type: ignore[arg-type]
    steps = {name: np.array(taken) for name, taken in by_rank[0]["steps"].items()}
    segments = _middle([one["segments"] for one in by_rank])
    console.print(f"\n{ranks} ranks, medians in ms:")
    console.print({name: f"{1e3 * seconds:.1f}" for name, seconds in segments.items()})
    for name, program in programs(setting.devices).items():
        whole, taken = executable(program), steps[name]
        known = simulate(whole, cost(program.stages)).makespan
        seen = simulate(whole, cost(program.stages, _seconds(segments))).makespan
        share = estimate(lambda one, other: one / other, taken, steps[ALONE])
        cells = [
            f"{1e3 * known:.0f}",
            median(taken).shown(1e3, 0),
            median(taken / known).shown(digits=3),
            median(taken / seen).shown(digits=3),
            share.shown(digits=3),
        ]
        facts = {"simulated": known, "by_segments": seen, "steps": taken.tolist()}
        yield [str(ranks), name, *cells], {"ranks": ranks, "program": name, **facts}


def _middle(segments: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median over all ranks, by name."""
    names = sorted({name for one in segments for name in one})
    return {
        name: float(np.median([one[name] for one in segments if name in one])) for name in names
    }


def _seconds(segments: Mapping[str, float]) -> Seconds:
    forward, backward = (
        tuple(segments[f"{kind} {part.name.lower()}"] for part in Part) for kind in "FI"
    )
    return Seconds(forward, backward, segments["W"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--steps", type=int, default=STEPS, help="of each program, after a warm-up")
    parser.add_argument("--timeout", type=int, default=900, help="seconds of all steps of a row")
    parser.add_argument("--json", type=Path, help="where the results go")
    arguments = parser.parse_args()
    table, facts = Table(*COLUMNS, box=box.MARKDOWN), []
    for ranks in arguments.ranks:
        for cells, found in rows(arguments, ranks):
            table.add_row(*cells)
            facts.append(found)
    Console(width=160).print(table)
    if arguments.json:
        document = {"machine": machine(), "seconds": KNOWN._asdict(), "rows": facts}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
