"""Steps of ranks that share a GPU: over the ideal time, as predicted, and in how much memory.

    python benchmarks/gpu/ranks.py [--hidden 2048] [--schedules zbv] [--json FILE]
    python benchmarks/gpu/ranks.py --device cpu --quick
    python benchmarks/gpu/ranks.py --model moe --schedules kimi-k2 --timelines FOLDER

Four ranks with a quarter of the GPU each, GPT blocks in bfloat16, 16 microbatches of 2 x 1024, no
update; a step of wpipe is an update, once these have settled. Weft and the ranks alone take turns.
`--timelines` draws slots of each synchronous schedule as simulated and as measured, in one more
step, which is recorded: with offload if `--offload` says so, and layers of experts cut into their
segments where the schedule has pairs.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from borrowed import (
    Contender,
    Estimate,
    Row,
    Samples,
    Turn,
    Watch,
    Work,
    alone,
    clear,
    estimate,
    finished,
    ideal_seconds,
    median,
    meet,
    period,
    reported,
    rounds,
    step_seconds,
    timed,
)
from common import SCHEDULES, Setting, measured, parsed, settings, timing, work_of
from torch import nn, optim

import weft
from weft.cost import Cost
from weft.draw.compared import Compared
from weft.draw.svg.compared import compared_to_svg
from weft.ir.kinds import Layer
from weft.ir.program import Program
from weft.jitter import Variation, jittered
from weft.lower import experts
from weft.notation import from_json, to_json
from weft.runtime import layers_of
from weft.runtime.profile import BRIEF, Sample, profiled
from weft.simulate import simulate
from weft.timeline import Timeline

SETTLING = 4  # steps before the peak of memory
UPDATES = 4  # of an asynchronous program, timed together
EXCESS, OFF, MEMORY = 0.10, 0.05, 0.10  # at most
RATIOS = ("predicted / measured", "with jitter / m.", "memory / simulated")
TIMELINES = ("timeline predicted", "timeline measured")
COLUMNS = ("ideal ms", "step ms", "excess %", *RATIOS, "missed")


# in a rank


def job(setting: Setting, arguments: argparse.Namespace, tell: Watch) -> dict[str, Any]:
    """The prediction, the most memory, and steps in turn with the stages alone."""
    work = work_of(setting, arguments)
    cost = profile(setting, work)
    gc.collect()  # copies that were profiled
    stages = [work.stage(stage) for stage in range(setting.program.stages)]
    others = allocated(work) - held_bytes(setting, stages)
    pipeline = pipeline_of(setting, work, stages, cost)
    step = partial(pipeline.step, work.batch, work.target, update=pipeline.is_asynchronous)
    modules = {} if pipeline.is_asynchronous else pipeline.modules
    contender = Contender(finished(step, work.batch.device), modules)
    predicted = seconds(pipeline, cost)
    slower = jittered(pipeline.program, cost, Variation.measured(cost)).mean
    found = {
        "predicted": predicted,
        "jittered": predicted * slower,
        "peak": peak_bytes(contender, work) - others,
        "simulated": simulate(pipeline.program, cost).memory.peaks,
        "times": asdict(cost.times),
        "link": asdict(cost.network.default),
        "overhead": cost.overhead,
    }
    turns: dict[str, Any] = {"alone": alone(setting, work, timing(arguments))}
    if pipeline.is_asynchronous:
        found["periods"] = periods(step, work, arguments.steps)
    else:
        turns["weft"] = partial(timed, contender)
        if arguments.timelines:
            found |= recorded(setting, work, cost, arguments.offload)
    return found | rounds(turns, arguments.steps, tell)


def pipeline_of(
    setting: Setting, work: Work, stages: Sequence[nn.Module], cost: Cost, **options: Any
) -> weft.Pipeline:
    program = options.pop("program", setting.program)
    return weft.Pipeline(
        stages,
        program,
        loss=work.loss,
        optimizer=sgd if program.period else None,
        nonfinite="ignore",  # which waits for no loss
        transport=setting.transport,  # type: ignore[arg-type]
        cost=cost,
        **options,
    )


def profile(setting: Setting, work: Work, runs: Program | None = None) -> Cost:
    """What Weft's own profile finds, all ranks at work."""
    program = setting.program
    stages = [work.stage(stage) for stage in range(program.stages)]
    batch, target = (data.chunk(setting.microbatches)[0] for data in (work.batch, work.target))
    sample = Sample(batch, target, work.loss, sgd if program.period else None)
    effort = replace(BRIEF, transport=setting.transport, link=True)
    return profiled(stages, program, sample, effort, runs=runs)


def recorded(setting: Setting, work: Work, cost: Cost, offload: str) -> dict[str, str]:
    """A step as simulated and as measured, of a pipeline of its own."""
    stages = [work.stage(stage) for stage in range(setting.program.stages)]
    program, layers = setting.program, layers_of(stages)
    if program.actions.joined.any() and any(Layer.EXPERTS in own for own in layers):
        program = experts(program, layers=layers)
        cost = profile(setting, work, program)
    options = {"program": program, "offload": offload, "record": True}
    with pipeline_of(setting, work, stages, cost, **options) as pipeline:
        for _ in range(SETTLING):
            result = pipeline.step(work.batch, work.target, update=False)
            for module in pipeline.modules.values():
                module.zero_grad()
        timelines = simulate(pipeline.program, cost), pipeline.gathered(result)
    return {name: to_json(one) for name, one in zip(TIMELINES, timelines, strict=True)}


def sgd(named: Iterable[tuple[str, nn.Parameter]]) -> optim.Optimizer:
    return optim.SGD([weight for _, weight in named], lr=1e-6)


def seconds(pipeline: weft.Pipeline, cost: Cost) -> float:
    """Of a step as the simulator has it; of an asynchronous one, once it has settled."""
    if pipeline.is_asynchronous:
        return period(pipeline.program, cost)
    return simulate(pipeline.program, cost).makespan


def periods(step: Turn, work: Work, steps: int) -> list[float]:
    """Seconds per update once they have settled, of some at a time.

    Nobody waits for a device between them: that would empty the pipeline. So the first updates and
    the last, which have nothing before or after them, do not count.
    """
    meet()
    ends = []
    for _ in range(UPDATES * (steps + 2) + 1):
        step()
        ends.append(instant(work))
    if work.batch.is_cuda:
        torch.cuda.synchronize()
    settled = ends[UPDATES:-UPDATES:UPDATES]
    return [seconds_between(*pair) / UPDATES for pair in pairwise(settled)]


def instant(work: Work) -> Any:
    """When all that was launched so far is over: on a GPU an event, which is read later."""
    if not work.batch.is_cuda:
        return time.monotonic()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def seconds_between(sooner: Any, later: Any) -> float:
    is_host = isinstance(sooner, float)
    return float(later - sooner if is_host else sooner.elapsed_time(later) / 1e3)


# memory


def allocated(work: Work) -> int:
    return torch.cuda.memory_allocated() if work.batch.is_cuda else 0


def held_bytes(setting: Setting, stages: Sequence[nn.Module]) -> int:
    """Weights of the stages that this rank trains; a user has all of them at first."""
    device = torch.distributed.get_rank()
    held = [stages[stage] for _, stage in setting.program.placement.held[device]]
    return sum(weight.nbytes for stage in held for weight in stage.parameters())


def peak_bytes(contender: Contender, work: Work) -> int:
    """The most that is allocated during a step, once there were some."""
    for _ in range(SETTLING):
        contender.step()
        clear(contender)
    if work.batch.is_cuda:
        torch.cuda.reset_peak_memory_stats()
    contender.step()
    clear(contender)
    return torch.cuda.max_memory_allocated() if work.batch.is_cuda else 0


# the report


def row(arguments: argparse.Namespace, setting: Setting, watch: Watch) -> Row:
    by_rank = measured(job, setting, arguments, watch)
    if arguments.timelines and TIMELINES[0] in by_rank[0]:
        draw(arguments.timelines, setting.schedule, [by_rank[0][name] for name in TIMELINES])
    least, steps = ideal_seconds(setting, by_rank), taken(by_rank)
    predicted, varied = (by_rank[0][name] for name in ("predicted", "jittered"))
    excess = estimate(lambda step, best: step / best - 1, steps, least)
    ratio, other = (estimate(partial(np.divide, one), steps) for one in (predicted, varied))
    peaks, simulated = [rank["peak"] for rank in by_rank], by_rank[0]["simulated"]
    is_known = arguments.device == "cuda"
    memory = [peak / most for peak, most in zip(peaks, simulated, strict=True) if is_known]
    cells = [
        median(least).shown(1e3, 1),
        median(steps).shown(1e3, 1),
        excess.shown(1e2, 1),
        ratio.shown(digits=3),
        other.shown(digits=3),
        " ".join(f"{one:.2f}" for one in memory),
        missed(excess, ratio, memory),
    ]
    facts = {"excess": excess, **dict(zip(RATIOS, (ratio, other, memory), strict=True))}
    kept = ("predicted", "jittered", "simulated", "times", "link", "overhead")
    facts |= {name: by_rank[0][name] for name in kept}
    samples = {"peaks": peaks, "steps": steps.tolist(), "ideal": least.tolist()}
    return Row(cells, facts | samples)


def draw(folder: Path, schedule: str, timelines: Sequence[str]) -> None:
    """Slots of the first device, one above the other, and both timelines as files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, one in zip(TIMELINES, timelines, strict=True):
        (folder / f"{schedule} {name}.json".replace(" ", "-")).write_text(one)
    predicted, found = map(from_json, timelines)
    assert isinstance(predicted, Timeline)
    assert isinstance(found, Timeline)
    (folder / f"{schedule}.svg").write_text(compared_to_svg(Compared(predicted, found, 0)))


def taken(by_rank: Sequence[Mapping[str, Any]]) -> Samples:
    """Seconds of each step, or of each update once they have settled."""
    if "periods" in by_rank[0]:
        return np.array(by_rank[0]["periods"])
    return step_seconds(by_rank, "weft")


def missed(excess: Estimate, ratio: Estimate, memory: Sequence[float]) -> str:
    """The targets that a row does not meet."""
    is_missed = {
        "excess": excess.value > EXCESS,
        "predicted": abs(ratio.value - 1) > OFF,
        "memory": any(abs(one - 1) > MEMORY for one in memory),
    }
    return " ".join(name for name, is_so in is_missed.items() if is_so) or "none"


if __name__ == "__main__":
    given = parsed(
        __doc__,
        schedules=SCHEDULES,
        transports=["peer"],
        hidden=[2048],
        steps=8,
        extra={
            "--timelines": {"type": Path, "help": "folder for slots, drawn, and timelines"},
            "--offload": {"default": "none", "choices": ("none", "auto", "all"), "help": "in them"},
        },
    )
    reported(given, COLUMNS, settings(given), partial(row, given))
