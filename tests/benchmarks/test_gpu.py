"""The benchmarks of ranks that share a GPU: what they compare with, and how they judge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from weft.cost import Share
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.notation import from_json, to_json
from weft.schedules import kimi_k2
from weft.simulate import simulate, steady

GPU = Path(__file__).parents[2] / "benchmarks" / "gpu"
SECONDS = {Kind.F: 1.0, Kind.B: 2.0, Kind.UPDATE: 0.5}


@pytest.fixture(scope="module", autouse=True)
def _importable() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(GPU)
        yield


@pytest.fixture(scope="module")
def kills() -> ModuleType:
    return import_module("kills")


def alone(program: Program) -> list[dict[str, Any]]:
    """What every rank finds in one round where each action takes what its kind does."""
    lanes = [program.lane(index) for index in range(len(program.lanes))]
    return [{"alone": [[SECONDS[action.kind] for action in lane]]} for lane in lanes]


# the ideal


def test_the_ideal_of_a_step_is_the_formula_of_1f1b() -> None:
    borrowed = import_module("borrowed")
    setting = borrowed.PlainSetting("1f1b", ranks=4, microbatches=8)
    (found,) = borrowed.ideal_seconds(setting, alone(setting.program))
    assert found == pytest.approx((8 + 4 - 1) * 3)


def test_the_ideal_of_an_asynchronous_program_is_what_it_settles_into() -> None:
    borrowed = import_module("borrowed")
    setting = borrowed.PlainSetting("wpipe", ranks=4, microbatches=8)
    program = setting.program
    cost = Share(forward=2.0, input_grad=2.0, weight_grad=2.0).cost(program)  # of two stages
    cost = replace(cost, times=replace(cost.times, update=(0.5,) * program.stages))
    (found,) = borrowed.ideal_seconds(setting, alone(program))
    assert found == pytest.approx(steady(program, cost).period)


def test_slots_are_drawn_beside_the_timelines_that_they_are_of(tmp_path: Path) -> None:
    ranks, timeline = import_module("ranks"), simulate(kimi_k2(devices=2, microbatches=4))
    ranks.draw(tmp_path / "new", "kimi-k2", [to_json(timeline)] * 2)
    drawn = (tmp_path / "new" / "kimi-k2.svg").read_text()
    assert "predicted" in drawn
    assert "measured" in drawn
    for name in ("predicted", "measured"):
        kept = (tmp_path / "new" / f"kimi-k2-timeline-{name}.json").read_text()
        assert to_json(from_json(kept)) == to_json(timeline)


# kills

SAID = {
    "kill": "weft.errors.RankError: device 1 died; device 0 was waiting for 1B0 of device 1",
    "raise": "weft.errors.RankError: device 1 failed at 1F2: struck on purpose; device 0 was"
    " waiting for 1B0 of device 1",
    "stall": "weft.errors.RankError: nothing came within the deadline of 5 s; device 0 was"
    " waiting for 1B0 of device 1",
}


def outcome(kills: ModuleType, kind: str, *said: str, seconds: float | None = 1.0) -> Any:
    """Of a job whose rank 1 was struck, when the others have ended so."""
    job = kills.Job(
        kind=kind,
        victim=1,
        call=0,
        schedule="1f1b",
        ranks=1 + len(said),
        device="cpu",
        transport="shared",
        backend="gloo",
        deadline=5.0,
    )
    others = [kills.Rank(0.1, seconds, 1, one) for one in said]
    words = "weft.errors.WeftError: device 1 failed at 1F2: struck on purpose"
    victim = kills.Rank(0.1, 0.1, 1, words)
    return kills.Outcome(job, "forward", [others[0], victim, *others[1:]], 0)


@pytest.mark.parametrize("kind", SAID)
def test_an_end_in_time_with_the_cause_is_one(kind: str, kills: ModuleType) -> None:
    found = outcome(kills, kind, SAID[kind])
    assert found.is_in_time
    assert found.is_named
    assert not found.left_over


@pytest.mark.parametrize("kind", SAID)
def test_a_save_that_was_not_made_names_the_cause_as_well(kind: str, kills: ModuleType) -> None:
    where = "weft.errors.RankError: /tmp/run/step-000002 was not saved: "
    assert outcome(kills, kind, where + SAID[kind].partition(": ")[2]).is_named
    assert not outcome(kills, kind, f"{where}another process has given up").is_named


@pytest.mark.parametrize("kind", SAID)
@pytest.mark.parametrize(
    "said",
    ["", "RuntimeError: NCCL communicator was aborted", "weft.errors.RankError: device 0 died"],
)
def test_other_last_words_name_no_cause(kind: str, said: str, kills: ModuleType) -> None:
    assert not outcome(kills, kind, said).is_named


def test_of_a_stall_one_has_to_know_the_device(kills: ModuleType) -> None:
    unaware = SAID["stall"].replace("device 1", "device 2")
    assert not outcome(kills, "stall", unaware, unaware).is_named
    assert outcome(kills, "stall", unaware, SAID["stall"]).is_named


def test_a_rank_that_had_to_be_killed_is_left_over(kills: ModuleType) -> None:
    found = outcome(kills, "kill", SAID["kill"], seconds=None)
    assert not found.is_in_time
    assert found.left_over == 1
