"""A request: whoever asks, on the command line or on the page, gets the same answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from weft.cost import Share
from weft.errors import InputError, UnknownSchedule
from weft.explain import Relief
from weft.ir.graph import Graph
from weft.ir.kinds import Kind
from weft.notation import to_text
from weft.request import (
    Attempt,
    Costs,
    Limits,
    Machine,
    Overrides,
    Passes,
    Prices,
    Refused,
    Request,
    Sizes,
    attempts,
    variants,
)
from weft.schedules import REGISTRY, one_f_one_b, pipedream
from weft.simulate import simulate
from weft.web.requests import read_request

SIZES = Sizes(devices=4, microbatches=8)


@pytest.mark.parametrize("name", [schedule.name for schedule in REGISTRY])
@pytest.mark.parametrize("relief", [Relief.NONE, Relief.RECOMPUTE])
def test_the_page_and_the_command_line_time_alike(name: str, relief: Relief) -> None:
    asked = {"schedule": name, "devices": 4, "microbatches": 8, "relief": relief.value}
    page = read_request(asked)
    flags = Request(name, SIZES, Passes.of(relief))
    assert page.title == flags.title
    assert page.timeline().makespan == flags.timed()[0].makespan
    assert page.settled() == flags.settled()


def test_what_is_left_open_has_one_default() -> None:
    page, flags = read_request({"schedule": "wpipe"}), Request("wpipe")
    assert page.shape == flags.shape
    assert (flags.shape.devices, flags.shape.microbatches, flags.shape.updates) == (4, 8, 4)


def test_a_file_is_a_program_with_a_shape_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(to_text(one_f_one_b(devices=2, microbatches=2)))
    request = Request(str(path))
    assert request.is_file
    assert request.program.devices == 2
    assert request.settled() is None
    with pytest.raises(InputError, match="leave out --devices and --microbatches"):
        _ = Request(str(path), SIZES).program


def test_a_program_that_repeats_settles_from_a_file_too(tmp_path: Path) -> None:
    path = tmp_path / "run.txt"
    path.write_text(to_text(pipedream(devices=4, microbatches=8)))
    settled = Request(str(path)).settled()
    assert settled == Request("pipedream", SIZES).settled()


def test_a_name_that_is_neither_schedule_nor_file() -> None:
    with pytest.raises(UnknownSchedule, match="There is no file of that name either"):
        _ = Request("1f2b").program


def test_limits_hold_before_anything_is_made() -> None:
    narrow = Limits(actions=100, devices=8, remedy="ask for {most} at most.")
    with pytest.raises(InputError, match=r"make 128 actions or more; ask for 100 at most\."):
        _ = Request("1f1b", Sizes(8, 8), limits=narrow).program
    with pytest.raises(InputError, match="devices: 9 is not a whole number from 1 to 8"):
        _ = Request("1f1b", Sizes(9, 1), limits=narrow).program


def test_passes_are_proved_as_well() -> None:
    timeline, proof = Request("1f1b", SIZES, Passes(recompute="all", offload="stage:0")).timed()
    kinds = {Kind(int(kind)) for kind in timeline.program.actions.kind}
    assert {Kind.R, Kind.OFFLOAD, Kind.ONLOAD} <= kinds
    assert proof.is_valid


def test_another_program_is_timed_in_the_same_way() -> None:
    request = Request("1f1b", SIZES, costs=Costs(Share(latency=0.5)))
    assert request.timeline_of(request.program).makespan == request.timed()[0].makespan


def test_variants_take_what_their_schedule_takes() -> None:
    chimera = [one.sizes for one in variants(Request("chimera", replace(SIZES, pipes=2)))]
    assert [(one.variant, one.pipes) for one in chimera] == [
        ("", 2),
        ("doubling", 2),
        ("halving", 2),
    ]
    (plain,) = variants(Request("1f1b", replace(SIZES, pipes=2)))
    assert plain.sizes.pipes == 1
    (asked,) = variants(Request("gpipe", replace(SIZES, variant="recompute")))
    assert asked.sizes.variant == "recompute"


def test_what_does_not_fit_is_tried_with_relief() -> None:
    costs = Costs(overrides=Overrides(capacity=3.5))
    found = [*attempts(Request("1f1b", SIZES, costs=costs))]
    assert all(isinstance(one, Attempt) for one in found)
    titles = [one.request.title for one in found]
    assert titles[0] == "1f1b"
    assert "1f1b --recompute all" in titles
    (refused,) = attempts(Request("chimera", Sizes(3, 8)))
    assert isinstance(refused, Refused)
    assert refused.reason == "needs an even number of devices; nearest: 4 devices"


def test_costs_that_contradict_each_other_are_refused() -> None:
    half = Costs.asked(Prices(backward=3), Machine()).base
    assert half == Share(input_grad=1.5, weight_grad=1.5)
    with pytest.raises(InputError, match="leave out --input-grad"):
        Costs.asked(Prices(backward=3, input_grad=1), Machine())
    with pytest.raises(InputError, match="leave out --latency"):
        Costs.asked(Prices(latency=1), Machine(model="gpt-6.2b", device="a100"))


def test_overrides_replace_what_a_link_and_a_device_have() -> None:
    program = one_f_one_b(devices=4, microbatches=8)
    usual = Costs.asked(Prices(), Machine(model="gpt-6.2b", device="a100"))
    changed = replace(usual, overrides=Overrides(latency=1.0, capacity=0)).of(program)
    assert changed.network.default.latency == 1.0
    assert changed.network.default.bandwidth == usual.of(program).network.default.bandwidth
    assert changed.memory.capacity == 0
    assert usual.of(program) == replace(usual, overrides=Overrides()).of(program)


def test_a_graph_needs_as_many_devices_as_it_has_stages() -> None:
    request = Request("gpipe", Sizes(graph="inception"))
    assert request.shape.devices == len(Graph.inception())
    assert request.shape.microbatches == 8
    assert request.timed()[0].makespan == simulate(request.program).makespan
