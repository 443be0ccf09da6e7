"""Pipelines that offload train as those that do not, bit for bit, whatever they offload."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.models import adam, batches, layers, squared
from tests.runtime.ranks import run
from tests.runtime.test_lowered import parted
from weft.cost import Cost, Link, Share
from weft.errors import InputError, WeftError
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.lower import Amount, executable, experts, offload, recompute, recompute_early, replicated
from weft.lower import split as split_backward
from weft.runtime import Pipeline, Reference, split
from weft.runtime.stage.offload import HeldTensors
from weft.schedules import REGISTRY, gpipe, one_f_one_b, zb_h1
from weft.simulate import simulate

SHARED: dict[str, Any] = {"loss": squared, "optimizer": adam, "seed": 3}


class Failing(nn.Module):
    """Fails at its third microbatch, when asked to."""

    is_failing = False

    def __init__(self) -> None:
        super().__init__()
        self.line, self.calls = nn.Linear(8, 8), 0

    def forward(self, value: Any) -> Any:
        self.calls += 1
        if self.is_failing and self.calls % 4 == 3:
            raise ValueError("no")
        return self.line(value).relu()


class Trained:
    """Losses and weights of some steps, by the reference."""

    def __init__(
        self, program: Program, stages: list[nn.Module], *, steps: int = 2, **settings: Any
    ) -> None:
        self._program, self._stages, self._settings = program, stages, {**SHARED, **settings}
        self._data = batches(program.microbatches * 2, steps)
        self._expected = copy.deepcopy(stages)
        reference = Reference(self._expected, program, **self._settings)
        self._losses = [reference.step(*one) for one in self._data]

    def differences(self, amount: Amount, program: Program | None = None, **own: Any) -> list[str]:
        """What a pipeline that offloads so much has otherwise; bytes that did not come back."""
        stages = copy.deepcopy(self._stages)
        with Pipeline(
            stages, program or self._program, offload=amount, **self._settings, **own
        ) as pipeline:
            losses = [pipeline.step(*one).loss for one in self._data]
            if pipeline.is_asynchronous:
                pipeline.drain()
            self.moved, self.program = pipeline.moved, pipeline.program
            pairs = enumerate(zip(losses, self._losses, strict=True))
            found = [f"loss {step}" for step, (one, other) in pairs if not torch.equal(one, other)]
            for (_, index), module in pipeline.modules.items():
                wanted = self._expected[index].state_dict()
                for name, value in module.state_dict().items():
                    if not torch.equal(value, wanted[name]):
                        found.append(f"{name} of stage {index}")
        return found + ["bytes that did not come back"] * (self.moved.away != self.moved.home)


def program_of(name: str) -> Program:
    schedule = REGISTRY[name]
    least, most = schedule.stages_per_device
    asked = {"updates": 6} if schedule.is_asynchronous else {}
    return schedule(devices=2, microbatches=4, stages_per_device=least if most else 2, **asked)


def trained(program: Program, **settings: Any) -> Trained:
    steps = 2 if program.period is None else 5
    stages = [*split(layers(program.stages), stages=program.stages)]
    return Trained(program, stages, steps=steps, **settings)


@pytest.mark.parametrize("name", [schedule.name for schedule in REGISTRY])
def test_every_schedule_is_exact_with_all_and_half_of_it_away(name: str) -> None:
    program = program_of(name)
    case = trained(program)
    assert case.differences("all") == []
    everything = case.moved.away
    assert (everything > 0) == (name != "naive")  # which uses again at once what it has saved
    assert case.differences(0.5) == []
    assert case.moved.away <= everything
    assert program.period is None or case.moved.away > 0


def test_recomputed_stages_move_their_inputs() -> None:
    """Those of stage 1: stage 0 has rows of the batch, and stage 2 uses its own again at once."""
    case = trained(recompute(one_f_one_b(devices=3, microbatches=4)))
    assert case.differences("all") == []
    rows, width, microbatches, steps = 2, 8, 4, 2
    assert case.moved.away == 4 * rows * width * microbatches * steps


def test_segments_move_with_their_stage() -> None:
    program = split_backward(one_f_one_b(devices=2, microbatches=4))
    case = Trained(program, parted(2))
    assert case.differences("all", experts(program, layers=2)) == []
    assert case.moved.away > 0
    again = recompute_early(one_f_one_b(devices=2, microbatches=4))
    assert Trained(again, parted(2)).differences("all", experts(again, layers=2)) == []


@pytest.mark.parametrize("settings", [{"precision": "bf16"}, {"clip": 0.5}], ids=str)
def test_precision_clipping_and_replicas_change_nothing_of_it(settings: dict[str, Any]) -> None:
    copies = replicated(one_f_one_b(devices=2, microbatches=2), 2)
    for program in (zb_h1(devices=2, microbatches=4), copies):
        case = trained(program, **settings)
        assert case.differences("all") == []
        assert case.moved.away > 0


def test_what_a_program_offloads_already_is_all_that_it_does() -> None:
    flat = one_f_one_b(devices=3, microbatches=4)
    given = offload(simulate(flat), stages=[0])
    case = trained(flat)
    assert case.differences("all", given) == []
    moved = case.program.actions.stage[case.program.actions.kind == Kind.OFFLOAD]
    assert {*moved.tolist()} == {0}


def cost(program: Program, copy: float) -> Cost:
    """Unit costs; a copy of what a stage saves takes so long."""
    unit = Share().cost(program)
    return Cost(unit.times, unit.memory, unit.network.__class__(1.0, host=Link(bandwidth=1 / copy)))


def test_auto_leaves_what_the_link_has_no_time_for() -> None:
    program = one_f_one_b(devices=3, microbatches=6)
    case, counts = trained(program), []
    for seconds in (0.1, 2.0, 100.0):
        assert case.differences("auto", cost=cost(program, seconds)) == []
        counts.append(int((case.program.actions.kind == Kind.OFFLOAD).sum()))
    assert counts[0] == 12 > counts[1] > counts[2] == 0
    assert case.differences("auto") == []  # by what is assumed
    assert case.moved.away > 0
    unlinked = cost(program, 1e-300)
    unlinked = Cost(unlinked.times, unlinked.memory, Share().cost(program).network)
    assert case.differences("auto", cost=unlinked) == []  # by a copy of its own


def test_copies_of_auto_may_take_longer_than_alone() -> None:
    program = one_f_one_b(devices=3, microbatches=6)
    case, known = trained(program), cost(program, 2.5)
    assert case.differences("auto", cost=known) == []
    tight = offload(simulate(program, known))
    is_late = []
    for chosen in (case.program, executable(tight)):
        spans = [simulate(chosen, cost(program, 2.5 * slower)).makespan for slower in (1e-9, 1.2)]
        is_late.append(spans[1] > spans[0])
    assert is_late == [False, True]


def test_amounts_that_say_nothing_are_refused() -> None:
    for amount in ("some", 1.5, -0.1, True):
        with pytest.raises(InputError, match="or a fraction of the bytes"):
            Pipeline(layers(2), one_f_one_b(devices=2, microbatches=2), offload=amount)  # type: ignore[arg-type]


def test_host_memory_is_used_again() -> None:
    program = one_f_one_b(devices=2, microbatches=4)
    stages = [*split(layers(2), stages=2)]
    with Pipeline(stages, program, offload="all", **SHARED) as pipeline:
        made = []
        for one in batches(8, 5):
            pipeline.step(*one)
            made.append(pipeline._parts._blocks.made)
        assert {*made} == {made[0]}
        assert 0 < made[0] < pipeline.moved.away


# in processes, where lanes are threads


def slowly(held: HeldTensors) -> int:
    time.sleep(0.02)
    return RIGHT(held)


RIGHT = HeldTensors.offload


def train_in_rank(name: str) -> list[str]:
    program = program_of(name)
    case = trained(program)
    found = case.differences("all")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HeldTensors, "offload", slowly)
        return found + case.differences("auto")


@pytest.mark.parametrize("name", ["zb-h1", "pipedream-2bw"])
def test_nothing_changes_where_copies_are_late(name: str) -> None:
    assert run(2, train_in_rank, name) == [[], []]


def early_loads(microbatches: int) -> list[int]:
    """Microbatches whose state came back while that of the two before was still in use."""
    program = gpipe(devices=2, microbatches=microbatches)
    stages = [*split(layers(2), stages=2)]
    with Pipeline(stages, program, offload="all", cost=cost(program, 0.25), **SHARED) as pipeline:
        timeline = pipeline.step(*batches(2 * microbatches, 1)[0]).timeline
    actions, rank = timeline.program.actions, torch.distributed.get_rank()
    rows = {
        (Kind(int(kind)), int(microbatch)): row
        for row, (kind, microbatch) in enumerate(zip(actions.kind, actions.microbatch, strict=True))
        if timeline.program.device_of[row] == rank
    }
    return [
        later
        for later in range(2, microbatches)
        if timeline.start[rows[Kind.ONLOAD, later]] < timeline.end[rows[Kind.B, later - 2]]
    ]


def test_what_has_left_stays_away_until_it_is_needed() -> None:
    """A thread has time to load it back at once; all of it would be on the device again."""
    assert run(2, early_loads, 6) == [[], []]


def costs_of_their_own(seconds: list[float]) -> int:
    program = one_f_one_b(devices=2, microbatches=4)
    mine = cost(program, seconds[torch.distributed.get_rank()])
    stages = [*split(layers(2), stages=2)]
    with Pipeline(stages, program, offload="auto", cost=mine, **SHARED) as pipeline:
        pipeline.step(*batches(8, 1)[0])
        return int((pipeline.program.actions.kind == Kind.OFFLOAD).sum())


def test_all_ranks_offload_by_the_cost_of_the_first() -> None:
    assert run(2, costs_of_their_own, [0.1, 100.0]) == [4, 4]


def test_memory_of_the_host_is_given_back_by_steps_that_fail() -> None:
    plain = one_f_one_b(devices=2, microbatches=4)
    program = offload(simulate(plain, Share().cost(plain)), amount="all")
    failing = Failing()
    stages = [nn.Sequential(nn.Linear(8, 8), nn.ReLU()), failing]
    ((batch, target),) = batches(8, 1)
    with Pipeline(stages, program, loss=squared, optimizer=adam) as pipeline:
        pipeline.step(batch, target)
        taken = pipeline._parts._blocks.made
        for _ in range(3):
            failing.is_failing, failing.calls = True, 0
            with pytest.raises(WeftError, match="no"):
                pipeline.step(batch, target)
        failing.is_failing = False
        pipeline.step(batch, target)
        assert 0 < pipeline._parts._blocks.made == taken


def test_the_targets_of_a_batch_stay_where_they_are() -> None:
    """Those of a microbatch are a part of it: all of it would leave with each."""
    program = gpipe(devices=2, microbatches=4)
    batch, target = batches(8, 1)[0]
    rows = 8 // program.microbatches
    loss = nn.functional.mse_loss  # which keeps both that it compares
    with Pipeline(
        [nn.Linear(8, 8), nn.Linear(8, 8)], program, loss=loss, optimizer=adam, offload="all"
    ) as pipeline:
        pipeline.step(batch, target)
        kept = 2 * rows * 8 * 4  # bytes of what the last stage reads and returns
        away = int(
            (
                pipeline.program.actions.stage[pipeline.program.actions.kind == Kind.OFFLOAD] == 1
            ).sum()
        )
        assert pipeline.moved.away == away * kept > 0
