"""A whole step: what is asked of a layout, with sums and updates where they are due."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.cost import Derivation, Layout, flops
from weft.errors import InputError
from weft.ir.kinds import Kind, Stream
from weft.request import Costs, Machine, Passes, Prices, Request, Sizes
from weft.timeline import Timeline

SIZES = Sizes(devices=4, microbatches=8)
MODEL = {"model": "llama-3-8b", "device": "h100"}


def asked(name: str = "1f1b", passes: Passes | None = None, **machine: object) -> Request:
    costs = Costs.asked(Prices(), Machine(**MODEL, **machine))  # type: ignore[arg-type]
    return Request(name, SIZES, passes or Passes(), costs)


def kinds(timeline: Timeline) -> dict[Kind, int]:
    found, counts = np.unique(timeline.program.actions.kind, return_counts=True)
    return {
        Kind(int(kind)): int(count)
        for kind, count in zip(found, counts, strict=True)
        if kind > Kind.R
    }


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ({}, {Kind.UPDATE: 4}),
        ({"tensor_parallel": 8}, {Kind.UPDATE: 4}),
        ({"data_parallel": 2}, {Kind.REDUCE: 4, Kind.UPDATE: 4, Kind.GATHER: 4}),
        ({"data_parallel": 2, "shard_optimizer": False}, {Kind.REDUCE: 4, Kind.UPDATE: 4}),
    ],
    ids=str,
)
def test_a_step_has_the_sums_that_its_layout_needs(
    machine: dict[str, Any], expected: dict[Kind, int]
) -> None:
    timeline, report = asked(**machine).stepped()
    assert not report.findings
    assert kinds(timeline) == expected


def test_a_step_ends_with_what_follows_the_last_backward_of_the_first_device() -> None:
    """1F1B ends on device 0, whose sum, update and gather are exposed; those of others are not."""
    request = asked(data_parallel=16, shard_optimizer=True)
    pipeline, step = request.timed()[0], request.stepped()[0]
    times = step.cost.times
    assert step.makespan - pipeline.makespan == pytest.approx(times.reduce[0] + times.update[0])
    assert times.reduce[0] > 0.01 * step.makespan
    program = step.program
    sums = [i for i, lane in enumerate(program.lanes) if lane.stream is Stream.REDUCE]
    assert len(sums) == 4
    reduced = step.end[program.actions.kind == Kind.REDUCE]
    assert (np.diff(reduced) < 0).all()  # device 3 first, while device 0 still computes
    assert reduced[3] < pipeline.makespan


def test_sums_of_early_stages_overlap_with_what_a_device_still_has_to_do() -> None:
    request = asked("interleaved-1f1b", data_parallel=16)
    pipeline, step = request.timed()[0], request.stepped()[0]
    times = step.cost.times
    exposed = step.makespan - pipeline.makespan
    assert exposed < sum(times.reduce[0::4]) + sum(times.update[0::4])


def test_a_step_is_that_of_steps() -> None:
    request = asked(data_parallel=2)
    several = asked(data_parallel=2, passes=Passes(steps=1))
    assert several.timed()[0].makespan == several.stepped()[0].makespan
    assert several.timed()[0].makespan == request.stepped()[0].makespan
    assert asked("pipedream").stepped()[0].makespan == asked("pipedream").timed()[0].makespan


def test_costs_in_units_have_no_copies() -> None:
    assert kinds(Request("1f1b", SIZES).stepped()[0]) == {Kind.UPDATE: 4}
    assert Costs().layout == Layout()


def test_speed_counts_every_processor() -> None:
    request = asked(tensor_parallel=4, data_parallel=2)
    timeline = request.stepped()[0]
    speed = request.costs.speed(timeline)
    base = request.costs.base
    assert speed is not None
    assert isinstance(base, Derivation)
    assert speed.devices == 4 * 4 * 2
    assert speed.tokens_per_second == pytest.approx(16 * base.model.tokens / timeline.makespan)
    work = 16 * flops(base.model) / timeline.makespan
    assert speed.mfu == pytest.approx(work / (32 * base.device.peak))


def test_selective_recompute_is_a_cost_and_no_action() -> None:
    usual, again = asked(), asked(passes=Passes(recompute="selective"))
    (kept, _), (dropped, _) = usual.timed(), again.timed()
    assert again.title == "1f1b --recompute selective"
    assert dropped.program == kept.program
    assert max(dropped.memory.peaks) < max(kept.memory.peaks)
    assert kept.makespan < dropped.makespan < 1.03 * kept.makespan
    with pytest.raises(InputError, match="needs --model and --device"):
        Request("1f1b", SIZES, Passes(recompute="selective")).timed()


def test_machines_describe_layouts() -> None:
    machine = Machine(**MODEL, tensor_parallel=2, shard_optimizer=False)  # type: ignore[arg-type]
    layout = Costs.asked(Prices(), machine).layout
    assert (layout.tensor, layout.is_sharded, layout.processors) == (2, False, 2)
    with pytest.raises(InputError, match="--tensor-parallel describes a model on a device"):
        Costs.asked(Prices(), Machine(tensor_parallel=2))
