"""Profiles of any modules: what is found, what is left as it was, and what is refused."""

from __future__ import annotations

import copy
import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.runtime.models import WIDTH, Faulty, is_same, layers, squared
from tests.runtime.ranks import run
from weft.cost import Cost, Link, Provenance, Share
from weft.errors import InputError, WeftError
from weft.ir.graph import Graph
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.lower import executable, recompute
from weft.notation import from_json, to_json
from weft.runtime import Pipeline, split
from weft.runtime.profile import BRIEF, Effort, Sample, profiled
from weft.runtime.profile.measure import copies_of
from weft.runtime.profile.rests import gaps
from weft.runtime.profile.rounds import AGAIN, SPLIT, WHOLE, ways_of
from weft.runtime.profile.updates import settled
from weft.schedules import chimera, dualpipe, gpipe, one_f_one_b, pipedream_2bw, zb_h1
from weft.simulate import simulate
from weft.timeline import Timeline

SAMPLE = Sample(
    torch.zeros(3, WIDTH),
    torch.ones(3, WIDTH),
    squared,
    lambda named: torch.optim.AdamW([weight for _, weight in named]),
)
QUICK = Effort(rounds=2, sizes=(4096, 65536), pings=2, steps=2)
ALL = QUICK.kinds


def stages(count: int) -> list[nn.Module]:
    return split(layers(count), stages=count)


@pytest.fixture(scope="module")
def cost() -> Cost:
    return profiled(stages(2), one_f_one_b(devices=2, microbatches=4), SAMPLE, QUICK)


def columns(group: object) -> dict[str, tuple[float, ...]]:
    """The fields of Times or Memory that are per stage."""
    found = {item.name: getattr(group, item.name) for item in fields(group)}  # type: ignore[arg-type]
    return {name: column for name, column in found.items() if isinstance(column, tuple)}


# what is found


def test_every_action_of_every_stage_is_timed(cost: Cost) -> None:
    timed = columns(cost.times)
    assert timed.pop("reduce") == (0.0, 0.0)
    assert len(timed) == 7
    for column in timed.values():
        assert all(0 < seconds < math.inf for seconds in column)


def test_all_that_was_measured_says_so(cost: Cost) -> None:
    marks = dict(cost.provenance)
    assert set(marks.pop("reduce")) == {Provenance.DERIVED}
    assert set(marks) == {
        *("forward", "input_grad", "weight_grad", "recompute", "update", "network")
    }
    assert {mark for column in marks.values() for mark in column} == {Provenance.MEASURED}
    assert set(simulate(one_f_one_b(devices=2, microbatches=4), cost).provenance) == {
        Provenance.MEASURED
    }


def test_memory_is_counted(cost: Cost) -> None:
    """Of a stage: 8 x 8 weights, a bias in the first, a norm; AdamW keeps two of each."""
    first, second = 64 + 8 + 16, 64 + 16
    counters = 4 * 4, 4 * 3  # one for each tensor
    assert list(cost.memory.weights) == [4 * first, 4 * second]
    assert cost.memory.gradients == cost.memory.weights
    assert list(cost.memory.optimizer) == [8 * first + counters[0], 8 * second + counters[1]]
    assert list(cost.memory.inputs) == [3 * WIDTH * 4] * 2
    assert list(cost.network.sizes(1)) == [3 * WIDTH * 4]
    assert min(cost.memory.saved) > 0


def test_of_a_batch_and_its_target_only_one_microbatch_counts() -> None:
    """They may be rows of larger tensors, which no forward keeps."""
    program = one_f_one_b(devices=2, microbatches=4)
    batch, target = torch.zeros(2, 300, WIDTH)
    rows = Sample(batch[:3], target[:3], squared)
    alone = replace(rows, batch=rows.batch.clone(), target=rows.target.clone())
    saved = [profiled(stages(2), program, one, BRIEF).memory.saved for one in (rows, alone)]
    assert saved[0] == saved[1]


def test_the_file_says_where_and_how_well_it_was_measured(cost: Cost) -> None:
    measurement = cost.measurement
    assert measurement is not None
    assert measurement.machine["torch"] == torch.__version__
    assert measurement.rounds == QUICK.rounds
    assert measurement.ranks == 1
    assert set(measurement.spread) == {
        *("forward", "backward", "input_grad", "weight_grad", "recompute", "update")
    }
    assert from_json(to_json(cost)) == cost


def test_a_profile_knows_the_link_to_the_host(cost: Cost) -> None:
    assert math.isfinite(cost.network.host.bandwidth)
    assert from_json(to_json(cost)) == cost


def test_a_brief_profile_has_what_the_program_runs() -> None:
    whole = profiled(stages(2), one_f_one_b(devices=2, microbatches=4), SAMPLE, BRIEF)
    assert whole.network.host == Link()
    assert whole.times.backward is None
    assert whole.times.input_grad == whole.times.weight_grad
    assert whole.times.recompute == whole.times.forward
    divided = profiled(stages(2), zb_h1(devices=2, microbatches=4), SAMPLE, BRIEF)
    assert divided.times.backward is None
    assert divided.times.input_grad != divided.times.weight_grad


def test_without_an_optimizer_there_is_no_update() -> None:
    sample = replace(SAMPLE, optimizer=None)
    cost = profiled(stages(2), one_f_one_b(devices=2, microbatches=4), sample, BRIEF)
    assert cost.times.update == cost.memory.optimizer == (0.0, 0.0)


def test_the_progress_of_all_parts_is_reported() -> None:
    reported: list[tuple[str, float]] = []
    program = one_f_one_b(devices=2, microbatches=4)
    profiled(stages(2), program, SAMPLE, BRIEF, lambda *words: reported.append(words))
    assert [what for what, share in reported if share == 1.0] == ["stages", "updates"]
    assert [share for _, share in reported] == [
        *(round_ / 9 for round_ in range(1, 10)),
        *(step / 5 for step in range(1, 6)),
    ]


# sums and updates


@pytest.fixture(scope="module")
def summed() -> Cost:
    return profiled(stages(2), chimera(devices=2, microbatches=4), SAMPLE, QUICK)


def test_sums_are_measured_where_stages_have_copies(summed: Cost) -> None:
    assert min(summed.times.reduce) > 0
    assert set(summed.provenance["reduce"]) == {Provenance.MEASURED}
    assert summed.measurement is not None
    assert "reduce" in summed.measurement.spread
    program = executable(chimera(devices=2, microbatches=4))
    assert set(simulate(program, summed).provenance) == {Provenance.MEASURED}


def test_a_cost_with_sums_is_read_as_it_was_written(summed: Cost) -> None:
    assert from_json(to_json(summed)) == summed


def test_gathers_are_measured_where_copies_share_updates() -> None:
    """As the sums are; optimizers remember as much of a stage as where each copy has all of it."""
    program = chimera(devices=2, microbatches=4)
    shared, alone = (
        profiled(stages(2), program, replace(SAMPLE, shard_optimizer=is_shared), BRIEF)
        for is_shared in (True, False)
    )
    assert shared.times.gather is not None
    assert min(shared.times.gather) > 0
    assert alone.times.gather is None
    assert from_json(to_json(shared)) == shared
    lowered = executable(program, is_sharded=True)
    is_gather = lowered.actions.kind == Kind.GATHER
    seconds = shared.durations(lowered)[lowered.slot_of[is_gather]]
    assert {*seconds} == {*shared.times.gather}
    pairs = zip(shared.memory.optimizer, alone.memory.optimizer, strict=True)
    assert all(one == pytest.approx(other, rel=0.05) for one, other in pairs)


def test_updates_are_measured_with_their_clipping() -> None:
    """A norm of zeros is 0: had it been forgotten, an update would find none."""
    sample = replace(SAMPLE, clip=1.0)
    cost = profiled(stages(2), chimera(devices=2, microbatches=4), sample, BRIEF)
    assert min(cost.times.update) > 0
    assert cost.times.close is not None
    assert min(cost.times.close) > 0


def test_sums_are_measured_without_an_optimizer() -> None:
    sample = replace(SAMPLE, optimizer=None)
    cost = profiled(stages(2), chimera(devices=2, microbatches=4), sample, BRIEF)
    assert min(cost.times.reduce) > 0
    assert cost.times.update == (0.0, 0.0)


def test_what_an_optimizer_remembers_of_a_tied_weight_counts_in_all_of_its_stages() -> None:
    modules = [nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)]
    modules[1].weight = modules[0].weight
    cost = profiled(modules, one_f_one_b(devices=2, microbatches=4), SAMPLE, BRIEF)
    assert modules[1].weight is modules[0].weight
    assert min(cost.times.update) > 0
    assert cost.times.reduce == (0.0, 0.0)
    assert list(cost.memory.optimizer) == [8 * WIDTH**2 + 4] * 2


def test_weights_of_other_ranks_are_not_copied() -> None:
    modules = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)]
    modules[2].weight = modules[0].weight
    first, second, third = copies_of(modules, modules[:1])
    assert first.weight is third.weight is not modules[0].weight
    assert second is not modules[1]
    assert second.weight is modules[1].weight
    assert third.bias is modules[2].bias


class Two(nn.Module):
    """Passes on two values, one of them whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor, number: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.line(value), torch.arange(4)


class Join(nn.Module):
    """Reads what several stages hand on."""

    def forward(self, *values: Tensor) -> Tensor:
        return torch.stack([value for value in values if value.is_floating_point()]).sum(0)


def test_stages_may_pass_several_values_and_branch() -> None:
    program = gpipe(devices=3, microbatches=2, graph=Graph.two_tower(1))
    cost = profiled([Two(), Two(), Join()], program, SAMPLE, QUICK)
    assert list(cost.network.sizes(2)) == [3 * WIDTH * 4 + 4 * 8] * 2
    assert min(cost.times.forward) > 0


def test_the_stages_stay_as_they_are() -> None:
    mine = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)), nn.Linear(WIDTH, WIDTH)]
    before = copy.deepcopy([module.state_dict() for module in mine])
    profiled(mine, one_f_one_b(devices=2, microbatches=4), SAMPLE, QUICK)
    for module, state in zip(mine, before, strict=True):
        assert all(weight.grad is None for weight in module.parameters())
        assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
        assert not module._forward_pre_hooks
    assert "forward" not in vars(mine[1])


# how stages are run


@pytest.mark.parametrize(
    ("program", "kinds", "ways"),
    [
        (one_f_one_b(devices=2, microbatches=2), frozenset(), [WHOLE]),
        (one_f_one_b(devices=2, microbatches=2), ALL, [WHOLE, SPLIT, AGAIN]),
        (zb_h1(devices=2, microbatches=2), frozenset(), [SPLIT]),
        (zb_h1(devices=2, microbatches=2), ALL, [SPLIT, WHOLE, AGAIN]),
        (dualpipe(devices=4, microbatches=8), frozenset(), [SPLIT]),
        (recompute(gpipe(devices=2, microbatches=2)), frozenset(), [AGAIN]),
        (recompute(gpipe(devices=2, microbatches=2)), ALL, [AGAIN, SPLIT]),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_stage_is_run_as_the_program_does_first(
    program: Program, kinds: frozenset[Kind], ways: list[object]
) -> None:
    assert list(ways_of(program, 0, kinds)) == ways


def test_a_gap_is_the_hosts_where_nothing_else_was_waited_for() -> None:
    """1F1B: device 1 turns from F to B at once; F1 lies there long before; B0 makes 0 wait."""
    program = one_f_one_b(devices=2, microbatches=2)
    made = simulate(program, replace(Share().cost(program), overhead=0.125))
    found = gaps(Timeline(program, made.cost, made.start, made.end), margin=0.5)
    np.testing.assert_allclose(found, [0.125] * len(found))
    assert len(found) == 4


# ranks


@pytest.mark.parametrize(
    "program",
    [
        one_f_one_b(devices=3, microbatches=4),
        chimera(devices=2, microbatches=4),
        pipedream_2bw(devices=2, microbatches=2),
    ],
    ids=lambda program: program.name,
)
def test_ranks_find_one_cost_together(program: Program) -> None:
    costs = run(program.devices, _profiled, program)
    assert len({to_json(replace(cost, measurement=None)) for cost in costs}) == 1
    _check_measured_by_ranks(costs[0], program)


def _profiled(program: Program) -> Cost:
    modules = split(layers(program.stages), stages=program.stages)
    return profiled(modules, program, SAMPLE, QUICK)


def _check_measured_by_ranks(cost: Cost, program: Program) -> None:
    measurement, link = cost.measurement, cost.network.default
    assert measurement is not None
    assert (measurement.ranks, measurement.transport) == (program.devices, "shared")
    assert [size for size, _ in measurement.hops] == list(QUICK.sizes)
    assert all(0 < seconds < math.inf for _, seconds in measurement.hops)
    assert measurement.r_squared <= 1
    assert 0 <= link.latency < math.inf
    assert link.bandwidth > 0
    assert 0 < cost.overhead < math.inf
    has_copies = len(program.placement.pipes) > 1
    assert all((seconds > 0) == has_copies for seconds in cost.times.reduce)
    assert (Provenance.MEASURED in cost.provenance["reduce"]) == has_copies
    assert simulate(program, cost).makespan > 0


# what is refused


def test_a_stage_too_few_is_refused() -> None:
    with pytest.raises(InputError, match="1 modules for the 2 stages of 1f1b"):
        profiled(stages(1), one_f_one_b(devices=2, microbatches=4), SAMPLE, QUICK)


def test_a_stage_that_fails_is_named() -> None:
    modules = [nn.Linear(WIDTH, WIDTH), Faulty()]
    with pytest.raises(WeftError, match="stage 1 failed in its profile: out of luck"):
        profiled(modules, one_f_one_b(devices=2, microbatches=4), SAMPLE, QUICK)


def test_an_asynchronous_stage_is_timed_with_its_stash() -> None:
    """As it will run: forwards with the leaves of a version, updates that write the next."""
    modules = stages(2)
    before = copy.deepcopy([module.state_dict() for module in modules])
    cost = profiled(modules, pipedream_2bw(devices=2, microbatches=2), SAMPLE, QUICK)
    assert min(cost.times.forward) > 0
    assert min(cost.times.update) > 0
    assert cost.measurement is not None
    assert cost.measurement.rounds == QUICK.steps
    for module, known in zip(modules, before, strict=True):
        assert all(is_same(value, known[name]) for name, value in module.state_dict().items())


def test_updates_in_which_an_asynchronous_pipeline_fills_and_drains_do_not_count() -> None:
    program = pipedream_2bw(devices=2, microbatches=2)
    pipeline = Pipeline(stages(2), program, loss=squared, optimizer=SAMPLE.optimizer)
    for _ in range(5):
        pipeline.step(torch.zeros(4, WIDTH), torch.ones(4, WIDTH))
    spans = [*pipeline.drain().spans()]
    found = settled(spans, 1)
    assert {span.update for span in spans} == {0, 1, 2, 3, 4}
    assert {span.update for span in found} == {1, 2, 3}
    assert len(found) == 3 * len(spans) / 5
    assert settled(spans, 0) == spans
