"""The quick clock and the quick scales of a search, beside the simulator."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.plan.cases import DEVICE, MOE
from weft.cost import Derivation, Layout, derive
from weft.ir.kinds import Kind
from weft.lower import recompute, updates
from weft.plan.blocks import derived, measured
from weft.plan.chain import Layers
from weft.plan.clock import Clock
from weft.plan.holding import Holding
from weft.schedules import REGISTRY, Schedule, Shape
from weft.simulate import simulate

LAYOUTS = [
    Layout(tensor=2),
    Layout(experts=2, replicas=2),
    Layout(replicas=2, is_sharded=False),
]
SYNCHRONOUS = [schedule for schedule in REGISTRY if not schedule.is_asynchronous]


def uneven(stages: int) -> Layers:
    """A cut of six layers and their ends."""
    rest = 6 - (stages - 2)
    return (
        (0, rest, *(1,) * (stages - 3), 0)
        if stages > 3
        else (2,) * (stages - 1) + (6 - 2 * (stages - 1),)
    )


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_chain_costs_what_is_derived(layout: Layout) -> None:
    setting = Derivation(model=MOE, device=DEVICE, layout=layout)
    program = REGISTRY["zbv"](devices=2, microbatches=4)
    layers = (0, 3, 2, 1)
    whole = derive(program, MOE, DEVICE, replace(layout, layers=layers))
    found = derived(setting, 2).cost(program, layers)
    for name in ("forward", "input_grad", "weight_grad", "recompute", "update", "reduce"):
        assert getattr(found.times, name) == pytest.approx(getattr(whole.times, name))
    for name in ("weights", "gradients", "optimizer", "saved", "inputs"):
        assert getattr(found.memory, name) == pytest.approx(getattr(whole.memory, name))
    assert found.network == whole.network
    assert found.pairs == pytest.approx(whole.pairs)


@pytest.mark.parametrize("schedule", SYNCHRONOUS, ids=lambda schedule: schedule.name)
def test_the_clock_and_the_scales_are_the_simulators(schedule: Schedule) -> None:
    """For every variant, layout and stage that is recomputed: the same seconds and bytes."""
    compared = 0
    for variant in ("", *schedule.variants):
        shape = Shape(devices=2, microbatches=6, stages_per_device=schedule.stages_for(),
                      variant=variant)  # fmt: skip
        if schedule.accepts(shape) is not None:
            continue
        program = schedule.program(shape)
        pipes = len(program.placement.pipes)
        layers = uneven(program.stages)
        for layout in LAYOUTS:
            setting = Derivation(model=MOE, device=DEVICE, layout=layout)
            chain = derived(setting, 2, pipes=pipes)
            clock, holding = Clock(program, layout), Holding(program, layout)
            for again in (frozenset[int](), frozenset({0})):
                if not clock.knows(chain):
                    continue
                has_copies = layout.copies > 1
                step = updates(
                    recompute(program, stages=again) if again else program,
                    is_sharded=has_copies and layout.is_sharded,
                    is_replicated=has_copies,
                )
                timeline = simulate(step, chain.cost(step, layers))
                seconds, busy = clock.measured(chain, layers, again)
                assert seconds == pytest.approx(timeline.makespan)
                assert busy == pytest.approx(float(timeline.device_work.sum()))
                peaks = holding.peaks(chain, layers, again)
                assert peaks == pytest.approx(np.array(timeline.memory.peaks))
                compared += 1
    assert compared


def test_what_recomputes_by_itself_is_left_to_the_simulator() -> None:
    program = REGISTRY["gpipe"](devices=2, microbatches=4, variant="recompute")
    assert (program.actions.kind == Kind.R).any()
    chain = derived(Derivation(model=MOE, device=DEVICE), 2)
    assert not Clock(program, Layout()).knows(chain)


def test_measured_stages_are_spread_over_their_layers() -> None:
    program = REGISTRY["1f1b"](devices=2, microbatches=4)
    cost = derive(program, MOE, DEVICE, Layout(layers=(4, 2)))
    chain = measured(cost, (4, 2))
    assert chain.cost(program, (4, 2)).times.forward == pytest.approx(cost.times.forward)
    first, second = chain.cost(program, (3, 3)).times.forward
    assert first == pytest.approx(cost.times.forward[0] * 3 / 4)
    assert first + second == pytest.approx(sum(cost.times.forward))
    assert [*pairwise(chain.bounds((3, 3)).tolist())] == [(0, 3), (3, 6)]
