"""The slot of Kimi K2: how much of the experts' communication shows, with pairs and without.

    python benchmarks/gpu/slot.py [--kinds spin copy nccl] [--json FILE] [--timelines FOLDER]
    python benchmarks/gpu/slot.py --device cpu --quick

A device with two stages of expert layers, `kimi-k2` without neighbours: pairs of F and I, then W.
What stands for an all-to-all:

spin  a kernel that takes as long as asked for (on a CPU: sleep), and nothing else
copy  the same bytes, copied on the device, as often as asked for
nccl  an exchange between two ranks of one GPU, each with half of it by MPS

Each is run in pairs and one action after the other. What shows of the communication is the time in
which the device computes nothing, by the measured timeline and by the simulated one; for that the
parts are timed where they run one by one. A GPU that computes all the time has lower clocks than
one that rests now and then, so its computation takes longer in pairs: that is said besides.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from borrowed import Row, Watch, estimate, finished, median, meet, reported
from common import DTYPES, EXPERTS, TOP, heads_of, here, measured, parsed
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import weft
from weft.cost import Cost, Share
from weft.draw.compared import Compared
from weft.draw.svg.compared import compared_to_svg
from weft.ir.kinds import Kind, Part, Stream
from weft.ir.program import Program
from weft.lower import experts, unpaired
from weft.models.moe import moe
from weft.notation import from_json, to_json
from weft.runtime import layers_of
from weft.runtime.experts import ALONE, ExpertGroup, ExpertRanks, OneRank
from weft.schedules import kimi_k2
from weft.simulate import simulate
from weft.timeline import Timeline

STAGES = 2
SETTLING = 3
WAYS = ("one by one", "in pairs")
COLUMNS = (
    "communication ms",
    "one by one ms",
    "in pairs ms",
    "pairs / one by one",
    "shown one by one % (simulated)",
    "shown in pairs % (simulated)",
    "computing, pairs / one by one",
)


class Slot(NamedTuple):
    """One row: what stands for an exchange."""

    kind: str
    hidden: int
    layers: int
    microbatches: int

    @property
    def ranks(self) -> int:
        return 2 if self.kind == "nccl" else 1

    @property
    def transport(self) -> str:
        return "nccl" if self.kind == "nccl" else "loopback"

    @property
    def refusal(self) -> str:
        return ""


# what stands for an exchange


class Standing(OneRank):
    """One rank, whose exchanges take time and change nothing."""

    def __init__(self, pass_time: Callable[[Tensor], None]) -> None:
        self._pass_time = pass_time

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        found: Tensor = _Passed.apply(rows, self._pass_time)  # type: ignore[no-untyped-call]
        return found


class _Passed(torch.autograd.Function):
    """The same values, both ways, after some time."""

    @staticmethod
    def forward(context: Any, rows: Tensor, pass_time: Callable[[Tensor], None]) -> Tensor:
        context.pass_time = pass_time
        pass_time(rows)
        return rows.view_as(rows)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        context.pass_time(gradients[0])
        return gradients[0], None


def spinning(seconds: float, device: torch.device) -> Callable[[Tensor], None]:
    if device.type == "cpu":
        return lambda _: time.sleep(seconds)
    cycles = int(seconds * cycles_per_second())
    return lambda _: torch.cuda._sleep(cycles)


def cycles_per_second() -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    cycles = 10_000_000
    torch.cuda._sleep(cycles)
    start.record()
    torch.cuda._sleep(cycles)
    end.record()
    end.synchronize()
    return cycles / (start.elapsed_time(end) / 1e3)


def copying(times: int) -> Callable[[Tensor], None]:
    def copy(rows: Tensor) -> None:
        other = torch.empty_like(rows)
        for _ in range(times):
            other.copy_(rows)

    return copy


# in a rank


def job(slot: Slot, arguments: argparse.Namespace, tell: Watch) -> dict[str, Any]:
    """Steps in pairs, one by one and without exchanges, in turn; simulated and measured slots."""
    device, mesh = here(arguments), None
    group: ExpertGroup = ALONE
    if slot.kind == "nccl":
        mesh = init_device_mesh(device.type, (2, 1), mesh_dim_names=("ep", "pp"))
        group = ExpertRanks(mesh.get_group("ep"))
    elif slot.kind == "copy":
        group = Standing(copying(arguments.copies))
    else:
        group = Standing(spinning(arguments.milliseconds / 1e3, device))
    batch, target = data(slot, arguments)
    turns, pipelines = {}, {}
    for name in WAYS:
        program = program_of(slot, is_paired=name == "in pairs")
        pipeline = pipeline_of(slot, program, group, arguments, mesh)
        step = partial(pipeline.step, batch, target, update=False)
        pipelines[name], turns[name] = pipeline, finished(step, device)
        for _ in range(SETTLING):
            turns[name]()
    found: dict[str, Any] = {name: [] for name in turns}
    for _ in range(arguments.steps):
        for name, turn in turns.items():
            meet()
            start = time.monotonic()
            turn()
            found[name].append(time.monotonic() - start)
        tell()
    lines = {}
    for name in WAYS:
        result = pipelines[name].step(batch, target, update=False)
        lines[name] = pipelines[name].gathered(result)
        found[f"{name} timeline"] = to_json(lines[name])
    cost = cost_of(lines["one by one"])
    for name, line in lines.items():
        found[f"{name} shown"] = shown(line)
        found[f"{name} simulated"] = shown(simulate(line.program, cost))
    return found


class Shown(NamedTuple):
    """Seconds of the first device: in all, of what it computes, and of communication."""

    whole: float
    computing: float
    communication: float

    @property
    def exposed(self) -> float:
        """How much of the communication is time in which nothing is computed."""
        return (self.whole - self.computing) / self.communication


def shown(timeline: Timeline) -> Shown:
    program, seconds = timeline.program, timeline.end - timeline.start
    rows = program.device_of == 0
    of_stream = {
        stream: rows & (program.lane_of == lane_of(program, stream))
        for stream in (Stream.COMPUTE, Stream.EXPERTS)
    }
    whole = timeline.end[rows].max() - timeline.start[rows].min()
    return Shown(float(whole), *(float(seconds[mine].sum()) for mine in of_stream.values()))


def program_of(slot: Slot, *, is_paired: bool) -> Program:
    whole = kimi_k2(devices=1, microbatches=slot.microbatches, stages_per_device=STAGES)
    return experts(whole if is_paired else unpaired(whole), layers=slot.layers)


def pipeline_of(
    slot: Slot,
    program: Program,
    group: ExpertGroup,
    arguments: argparse.Namespace,
    mesh: Any,
) -> weft.Pipeline:
    device = here(arguments)
    torch.manual_seed(1)
    with torch.device(device):
        model = moe(
            1,
            layers=STAGES * slot.layers,
            hidden=slot.hidden,
            heads=heads_of(slot.hidden),
            context=1,
            experts=EXPERTS,
            top=TOP,
            dense=0,
            load="balanced",
            group=group,
        )[1:-1].to(DTYPES[arguments.dtype])
    stages = [model[i * slot.layers : (i + 1) * slot.layers] for i in range(STAGES)]
    assert len(layers_of(stages)) == STAGES
    return weft.Pipeline(
        stages,
        program,
        loss=nn.functional.mse_loss,
        nonfinite="ignore",  # which waits for no loss
        mesh=mesh,
        transport="auto",
        record=True,
    )


def data(slot: Slot, arguments: argparse.Namespace) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    form = (slot.microbatches * arguments.rows, arguments.context, slot.hidden)
    made = (torch.randn(form, device=here(arguments)) for _ in range(2))
    batch, target = (one.to(DTYPES[arguments.dtype]) for one in made)
    return batch, target


def cost_of(timeline: Timeline) -> Cost:
    """What each part takes where nothing runs beside it: medians."""
    program, actions = timeline.program, timeline.program.actions
    seconds = timeline.end - timeline.start

    def middle(kind: Kind, stage: int, part: Part | None = None) -> float:
        rows = (actions.kind == kind) & (actions.stage == stage)
        if part is not None:
            rows &= actions.segment % len(Part) == part
        return float(np.median(seconds[rows]))

    stages = range(program.stages)
    layers = int(actions.segment.max() + 1) // len(Part)
    plain, parts, times = Share().cost(program), {}, {}
    for name, kind, field in (("F", Kind.F, "forward"), ("I", Kind.I, "input_grad")):
        each = np.array([[middle(kind, stage, part) for part in Part] for stage in stages])
        times[field] = tuple((layers * each.sum(1)).tolist())
        mean = each.mean(0)
        parts[name] = tuple((mean / mean.sum()).tolist())
    times["weight_grad"] = tuple(middle(Kind.W, stage) for stage in stages)
    return replace(plain, times=replace(plain.times, **times), parts=parts)


def lane_of(program: Program, stream: Stream) -> int:
    return next(i for i, lane in enumerate(program.lanes) if lane.stream is stream)


# the report


def row(arguments: argparse.Namespace, slot: Slot, watch: Watch) -> Row:
    share = 50 if slot.kind == "nccl" else 0
    given = argparse.Namespace(**vars(arguments) | {"share": share})
    first = measured(job, slot, given, watch)[0]  # type: ignore[arg-type]
    seconds = {name: np.array(first[name]) for name in WAYS}
    told = {name: Shown(*first[f"{name} shown"]) for name in WAYS}
    hoped = {name: Shown(*first[f"{name} simulated"]) for name in WAYS}
    gain = estimate(lambda one, other: one / other, *(seconds[name] for name in WAYS[::-1]))
    slower = told["in pairs"].computing / told["one by one"].computing
    if arguments.timelines:
        _draw(Path(arguments.timelines) / f"{slot.kind}.svg", first)
        for name in WAYS:
            file = f"{slot.kind} {name}.json".replace(" ", "-")
            (Path(arguments.timelines) / file).write_text(first[f"{name} timeline"])
    cells = [
        f"{1e3 * told['one by one'].communication:.1f}",
        *(median(seconds[name]).shown(1e3, 1) for name in WAYS),
        gain.shown(digits=3),
        *(f"{100 * told[name].exposed:.0f} ({100 * hoped[name].exposed:.0f})" for name in WAYS),
        f"{slower:.3f}",
    ]
    facts = {name: value for name, value in first.items() if "timeline" not in name}
    return Row(cells, facts | {"pairs / one by one": gain})


def _draw(file: Path, found: dict[str, Any]) -> None:
    """The slot in pairs as simulated and as measured, in the rows of Kimi K2's figure."""
    lines = {name: from_json(found[f"{name} timeline"]) for name in WAYS}
    cost, pairs = cost_of(lines["one by one"]), lines["in pairs"]
    file.write_text(compared_to_svg(Compared(simulate(pairs.program, cost), pairs, 0)))


def asked() -> argparse.Namespace:
    given = parsed(
        __doc__,
        schedules=("kimi-k2",),
        transports=["nccl"],
        hidden=[4096],
        layers=[2],
        rows=1,
        context=4096,
        microbatches=8,
        steps=6,
        extra={
            "--kinds": {"nargs": "+", "default": ["spin", "copy", "nccl"]},
            "--milliseconds": {"type": float, "default": 0.5, "help": "of a spin"},
            "--copies": {"type": int, "default": 8},
            "--timelines": {"help": "folder for measured timelines and pictures"},
        },
    )
    if given.quick:
        given.kinds = ["spin"]
    return given


if __name__ == "__main__":
    chosen = asked()
    slots = [
        Slot(kind, hidden, layers, chosen.microbatches)
        for kind in chosen.kinds
        for hidden in chosen.hidden
        for layers in chosen.layers
    ]
    reported(chosen, COLUMNS, slots, partial(row, chosen))
