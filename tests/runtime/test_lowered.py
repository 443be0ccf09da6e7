"""What runs is the lowered program: its copies, segments, sums and updates, action by action."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.runtime.exactness import differences
from tests.runtime.models import (
    WIDTH,
    adam,
    batches,
    layers,
    likelihood,
    linear,
    plain_descent,
    squared,
    tied,
    words,
)
from tests.runtime.ranks import over_transports, run
from weft.cost import Cost, Share
from weft.errors import NonfiniteError, WeftError
from weft.ir.kinds import Kind, Stream
from weft.ir.program import Program
from weft.lower import executable, experts, offload, recompute, recompute_early
from weft.lower import split as split_backward
from weft.runtime import Pipeline, Reference, split
from weft.runtime.lane import steps
from weft.runtime.weights.exchange import Exchange
from weft.schedules import chimera, dualpipe, gpipe, one_f_one_b, zb_h1
from weft.simulate import simulate
from weft.timeline import Timeline
from weft.verify import verify

# the program


def test_the_program_is_the_lowered_one_and_all_of_it_is_recorded() -> None:
    program = chimera(devices=2, microbatches=4)
    pipeline = Pipeline(linear(2), program, loss=squared, optimizer=adam, clip=1.0)
    assert pipeline.program == executable(program, norms=[[0, 1]])
    assert verify(pipeline.program).is_valid
    ((batch, target),) = batches(8, 1)
    timeline = pipeline.step(batch, target).timeline
    assert timeline.program is pipeline.program
    assert (timeline.start > 0).all()
    kinds = {Kind(int(kind)) for kind in timeline.program.actions.kind}
    assert kinds >= {Kind.REDUCE, Kind.UPDATE, Kind.SEND_ACTIVATION, Kind.RECV_GRADIENT}
    assert {lane.stream for lane in timeline.program.lanes} >= {Stream.WIRE, Stream.REDUCE}
    predicted = simulate(timeline.program, timeline.cost)
    assert len(predicted.start) == len(timeline.start)


def test_without_an_optimizer_gradients_are_summed_and_nothing_is_updated() -> None:
    pipeline = Pipeline(linear(2), chimera(devices=2, microbatches=4), loss=squared)
    kinds = pipeline.program.actions.kind
    assert (kinds == Kind.REDUCE).any()
    assert not (kinds == Kind.UPDATE).any()


def test_a_tied_weight_has_sums_and_updates_of_its_own() -> None:
    program = one_f_one_b(devices=2, microbatches=2)
    pipeline = Pipeline(tied(2), program, loss=likelihood, optimizer=plain_descent)
    actions = pipeline.program.actions
    for kind in (Kind.REDUCE, Kind.UPDATE):
        assert sorted(actions.stage[(actions.kind == kind) & (actions.edge == 0)]) == [0, 1]
    ((batch, target),) = words(4, 1)
    assert (pipeline.step(batch, target).timeline.start > 0).all()


# copies to the host


def offloaded(program: Program) -> Program:
    found = offload(simulate(program))
    assert (found.actions.kind == Kind.OFFLOAD).any()
    return found


def offloading() -> dict[str, Program]:
    flat = one_f_one_b(devices=4, microbatches=8)
    return {
        "gpipe": offloaded(gpipe(devices=2, microbatches=4)),
        "1f1b": offloaded(flat),
        "zb-h1": offloaded(zb_h1(devices=4, microbatches=8)),
        "recomputed": offloaded(recompute(flat)),
        "chimera": offloaded(chimera(devices=4, microbatches=8)),
    }


@pytest.mark.parametrize("name", offloading())
def test_state_that_leaves_and_comes_back_is_exact(name: str) -> None:
    program = offloading()[name]
    whole = layers(program.stages)
    data = batches(program.microbatches * 3 - 1, 2)
    assert differences(split(whole, stages=program.stages), program, data, clip=0.5) == []


def train_offloaded(transport: Any) -> list[str]:
    """In each rank, where copies run on threads of their own."""
    found = []
    for name in ("1f1b", "zb-h1", "recomputed", "chimera"):
        program = offloading()[name]
        whole = layers(program.stages)
        data = batches(program.microbatches * 3 - 1, 2)
        stages = split(whole, stages=program.stages)
        found += differences(stages, program, data, clip=0.5, transport=transport)
    return found


def test_copies_on_threads_are_exact() -> None:
    assert over_transports(4, train_offloaded) == [[[]] * 4] * 2


# segments


class Parted(nn.Module):
    """Two layers of four segments, the first with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2) if index == 0 else nn.Tanh())
            for index in range(8)
        )

    def segments(self) -> list[nn.Module]:
        return [*self.parts]

    def forward(self, value: Tensor) -> Tensor:
        for part in self.parts:
            value = part(value)
        return value


def parted(stages: int) -> list[nn.Module]:
    torch.manual_seed(1)
    return [Parted() for _ in range(stages)]


def cut() -> dict[str, Program]:
    """Programs as they are written, by name."""
    return {
        "1f1b": one_f_one_b(devices=2, microbatches=4),
        "split": split_backward(one_f_one_b(devices=2, microbatches=4)),
        "dualpipe": split_backward(dualpipe(devices=2, microbatches=4)),
        "recomputed": recompute_early(one_f_one_b(devices=2, microbatches=4)),
    }


def segmented(program: Program, transport: Any = "auto") -> list[str]:
    """Train in segments and, by the reference, whole; what is not equal."""
    stages, copies = parted(program.stages), parted(program.stages)
    shared: dict[str, Any] = {"loss": squared, "optimizer": adam, "seed": 3, "clip": 0.5}
    pipeline = Pipeline(stages, experts(program, layers=2), transport=transport, **shared)
    reference = Reference(copies, program, **shared)
    found = []
    for step, (batch, target) in enumerate(batches(program.microbatches * 2, 2)):
        if not torch.equal(pipeline.step(batch, target).loss, reference.step(batch, target)):
            found.append(f"the loss of step {step}")
    return found + [
        f"{name} of stage {stage}"
        for (_, stage), module in pipeline.modules.items()
        for name, value in module.state_dict().items()
        if not torch.equal(value, copies[stage].state_dict()[name])
    ]


@pytest.mark.parametrize("name", cut())
def test_layers_cut_into_segments_are_exact(name: str) -> None:
    assert segmented(cut()[name]) == []


def train_segmented(transport: Any) -> list[str]:
    return [wrong for program in cut().values() for wrong in segmented(program, transport)]


def test_segments_on_two_streams_are_exact() -> None:
    assert over_transports(2, train_segmented) == [[[]] * 2] * 2


class Drawing(nn.Module):
    """A segment that draws."""

    def forward(self, value: Tensor) -> Tensor:
        return value + torch.rand_like(value)


def draw_beside(place: int) -> str:
    """In each rank: what a step says of a stage of which one segment draws."""
    stages = [nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))) for _ in range(2)]
    stages[0][place] = Drawing()
    program = experts(one_f_one_b(devices=2, microbatches=2))
    pipeline = Pipeline(stages, program, loss=squared)
    try:
        pipeline.step(*batches(4, 1)[0])
    except WeftError as error:
        return str(error)
    return "nothing"


def test_what_runs_beside_the_computation_may_not_draw() -> None:
    """Attention may; dispatch, which is on the experts stream, may not."""
    assert run(2, draw_beside, 0) == ["nothing"] * 2
    for said in run(2, draw_beside, 1):
        assert "a segment of stage 0 draws (aten.rand_like" in said


def train_cast(transport: Any) -> list[str]:
    """In each rank, with autocast, which threads do not inherit."""
    with torch.autocast("cpu", torch.bfloat16):
        return segmented(cut()["split"], transport)


def test_autocast_holds_for_segments_on_all_streams() -> None:
    assert over_transports(2, train_cast) == [[[]] * 2] * 2


# what overlaps


class Countdown:
    """Waits, the last time that it is called, until something else has happened."""

    def __init__(self, calls: int) -> None:
        self.happened, self.left = Event(), calls

    def __call__(self, _: Tensor) -> None:
        self.left -= 1
        if self.left == 0 and not self.happened.wait(60):
            raise AssertionError("no sum has run meanwhile")


class Patient(nn.Module):
    """Calls something in every backward."""

    def __init__(self, call: Countdown) -> None:
        super().__init__()
        self.line, self.call = nn.Linear(WIDTH, WIDTH), call

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.line(value)
        if out.requires_grad and type(out) is Tensor:
            out.register_hook(self.call)  # type: ignore[no-untyped-call]
        return out.clone()


def sum_while_computing(transport: Any) -> list[str]:
    """In each rank: the last backward waits for the sum of the other stage's gradients.

    device 0   ... B of stage 1   B of stage 0          UPDATE
                                  REDUCE of stage 1
    """
    countdown = Countdown(2)
    stages = [Patient(countdown), nn.Linear(WIDTH, WIDTH)]
    program = chimera(devices=2, microbatches=4)
    right = Exchange.sum_up

    def noticed(exchange: Exchange, update: int) -> None:
        right(exchange, update)
        countdown.happened.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Exchange, "sum_up", noticed)
        pipeline = Pipeline(
            stages, program, loss=squared, optimizer=adam, transport=transport, deadline=100
        )
        ((batch, target),) = batches(8, 1)
        timeline = pipeline.gathered(pipeline.step(batch, target))
    return sorted(overlapped(timeline))


def overlapped(timeline: Timeline) -> set[str]:
    """Sums that ended before the last backward of their device did."""
    program = timeline.program
    is_backward = np.isin(program.actions.kind, (Kind.B, Kind.W))
    last = [timeline.end[is_backward & (program.device_of == d)].max() for d in (0, 1)]
    sums = np.flatnonzero(program.actions.kind == Kind.REDUCE).tolist()
    return {
        f"{program.actions.stage[row]} on {program.device_of[row]}"
        for row in sums
        if timeline.end[row] < last[program.device_of[row]]
    }


def test_sums_overlap_the_last_backwards_where_the_program_says_so() -> None:
    predicted = simulate(executable(chimera(devices=2, microbatches=4)))
    assert overlapped(predicted) == {"1 on 0", "1 on 1"}
    assert over_transports(2, sum_while_computing) == [[["1 on 0", "1 on 1"]] * 2] * 2


class Calls:
    """Counts the calls of a segment; one of them happens, or waits, for those of another."""

    def __init__(self) -> None:
        self.attentions, self.combines, self.began = 0, 0, Event()

    def attention(self) -> None:
        self.attentions += 1
        if self.attentions == 2:
            self.began.set()

    def combine(self) -> None:
        self.combines += 1
        if self.combines == 1 and not self.began.wait(60):
            raise AssertionError("the next microbatch has not begun meanwhile")


class Called(nn.Module):
    """A segment that says when it runs, unless it is only outlined."""

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__()
        self.line, self.call = nn.Linear(WIDTH, WIDTH), call

    def forward(self, value: Tensor) -> Tensor:
        if type(value) is Tensor and not value.is_meta:
            self.call()
        out: Tensor = self.line(value)
        return out


def combine_while_computing(transport: Any) -> str:
    """In each rank: combine of microbatch 0 ends once attention of microbatch 1 has begun.

    compute   A0    E0    A1 ...
    experts      D0    C0 ......
    """
    calls = Calls()
    others = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
    parts = [Called(calls.attention), others[0], others[1], Called(calls.combine)]
    program = experts(gpipe(devices=2, microbatches=2))
    plain_stage = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    stages = [nn.Sequential(*parts), plain_stage]
    pipeline = Pipeline(stages, program, loss=squared, transport=transport, deadline=100)
    pipeline.step(*batches(4, 1)[0])
    return "done"


def test_the_experts_stream_does_not_hold_up_the_computation() -> None:
    assert over_transports(2, combine_while_computing) == [["done"] * 2] * 2


# losses that a device still computes


def test_losses_that_are_not_known_yet_are_reported_before_an_update_waits_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU, where a loss is a tensor until somebody looks at it."""
    monkeypatch.setattr(steps, "_known", Tensor.detach)
    program = chimera(devices=2, microbatches=4)
    assert differences(linear(2), program, batches(8, 3), clip=0.5) == []
    pipeline = Pipeline(linear(2), program, loss=squared, optimizer=adam)
    with pytest.raises(NonfiniteError, match="the loss of step 1 is nan, by microbatch 0"):
        pipeline.step(torch.full((8, WIDTH), float("nan")), torch.zeros(8, WIDTH))


# one order


def train_by(costs: Sequence[Cost | None]) -> tuple[str, list[float]]:
    """In each rank, with a cost of its own."""
    program = chimera(devices=2, microbatches=4)
    pipeline = Pipeline(
        linear(2), program, loss=squared, optimizer=adam, cost=costs[dist.get_rank()]
    )
    data = batches(8, 2)
    return pipeline.program.digest, [float(pipeline.step(*one).loss) for one in data]


def test_all_ranks_go_by_the_cost_of_the_first() -> None:
    program = chimera(devices=2, microbatches=4)
    unit = Share().cost(program)
    slow = replace(unit, times=replace(unit.times, forward=(5.0, 1.0)))
    first, second = run(2, train_by, [slow, None])
    assert first == second == run(2, train_by, [None, unit])[0]
