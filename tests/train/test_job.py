"""Jobs in one process: exact on every schedule, predicted, and written down."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from weft.cost import Share
from weft.errors import InputError
from weft.ir.program import Program
from weft.ir.versions import resident_versions
from weft.notation import read_program, read_timeline
from weft.schedules import REGISTRY, Schedule, Shape, one_f_one_b
from weft.train import (
    Outcome,
    RunFiles,
    RunFolder,
    Settings,
    check_free,
    checked,
    data_of,
    free_folder,
    own_text,
    trained,
)
from weft.train.model import layers_of

ASYNCHRONOUS = [schedule for schedule in REGISTRY if schedule.is_asynchronous]
SYNCHRONOUS = [schedule for schedule in REGISTRY if not schedule.is_asynchronous]


def small(program: Program, steps: int = 2, **changes: float) -> Settings:
    sizes = {"hidden": 16, "heads": 2, "context": 8, "microbatch_size": 2, "layers": 4}
    return Settings(program, own_text(), steps=steps, **(sizes | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return trained(small(one_f_one_b(devices=2, microbatches=4), steps=20))


@pytest.mark.parametrize("schedule", SYNCHRONOUS, ids=lambda schedule: schedule.name)
def test_every_schedule_has_the_losses_of_the_reference(schedule: Schedule) -> None:
    shape = Shape(
        devices=2, microbatches=4, stages_per_device=schedule.stages_per_device[0], pipes=1
    )
    settings = small(schedule.program(shape), dropout=0.1)
    by_hand = Share().cost(settings.program)  # other tests measure it
    assert trained(settings, cost=by_hand).losses == checked(settings)


@pytest.mark.parametrize("schedule", ASYNCHRONOUS, ids=lambda schedule: schedule.name)
def test_asynchronous_training_gives_the_losses_of_the_reference(schedule: Schedule) -> None:
    shape = Shape(
        devices=2, microbatches=4, stages_per_device=schedule.stages_per_device[0], updates=8
    )
    cost = None
    for changes in ({}, {"switch_after": 3}, {"predict": True, "temper": 3}):
        settings = small(schedule.program(shape), steps=8, dropout=0.1, **changes)
        outcome = trained(settings, cost=cost)
        cost = outcome.predicted.cost  # measured once
        assert outcome.losses == checked(settings)
        assert [step.step for step in outcome.metrics] == [*range(1, 9)]
        stale = max(outcome.staleness)
        start = settings.switch_after
        assert [step.staleness for step in outcome.metrics] == [0] * (start + 1) + [stale] * (
            7 - start
        )
        assert outcome.measured.program.steps == 8 - start
        assert outcome.versions == resident_versions(schedule.program(shape))


def test_a_run_that_never_switches_is_refused() -> None:
    program = REGISTRY["pipedream-2bw"].program(Shape(devices=2, microbatches=2, updates=8))
    with pytest.raises(InputError, match="all 2 steps are synchronous"):
        trained(small(program, switch_after=2))


def test_tokens_give_the_losses_of_the_text_that_they_are(tmp_path: Path) -> None:
    text, program = own_text(), one_f_one_b(devices=2, microbatches=4)
    text.tokens().astype("<u2").tofile(tmp_path / "text.bin")
    tokens = replace(small(program), data=data_of(tmp_path / "text.bin"))
    assert trained(tokens).losses == checked(tokens) == checked(small(program))


def test_the_loss_falls(outcome: Outcome) -> None:
    assert outcome.losses[-1] < outcome.losses[0] - 0.3


def test_the_learning_rate_rises_and_falls(outcome: Outcome) -> None:
    rates = [step.learning_rate for step in outcome.metrics]
    assert rates.index(max(rates)) == 1
    assert rates[1:] == sorted(rates[1:], reverse=True)


def test_figures_of_a_run(outcome: Outcome) -> None:
    assert [step.step for step in outcome.metrics] == list(range(1, 21))
    assert outcome.predicted_step > 0
    assert outcome.measured.is_measured
    assert not outcome.predicted.is_measured
    assert all((step.gradient_norm or 0) > 0 for step in outcome.metrics)


def test_the_first_device_keeps_one_microbatch_more(outcome: Outcome) -> None:
    memory = outcome.measured.cost.memory
    resident = memory.weights[0] + memory.gradients[0] + memory.optimizer[0]
    (message,) = outcome.measured.cost.network.sizes(1)  # a gradient that has come
    assert outcome.peak_memory[0] == resident + 2 * memory.saved[0] + message


def test_a_run_folder_reads_back(outcome: Outcome, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    files = RunFiles(folder, settings="steps = 20\n", has_events=True)
    with RunFolder(files) as run:
        for metrics in outcome.metrics:
            run.add(metrics)
        run.add(outcome)
    assert [path.name for path in folder.parent.iterdir()] == ["one"]
    assert read_program(folder / "program.txt") == outcome.measured.program
    assert read_timeline(folder / "measured.json").makespan == outcome.measured.makespan
    assert read_timeline(folder / "predicted.json").makespan == outcome.predicted_step
    assert json.loads((folder / "measured.perfetto.json").read_text())["traceEvents"]
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in lines] == outcome.losses
    assert json.loads((folder / "summary.json").read_text())["losses"] == outcome.losses
    assert len(list(folder.glob("events.out.tfevents.*"))) == 1
    assert (folder / "settings.toml").read_text() == "steps = 20\n"
    with pytest.raises(InputError, match="exists"):
        check_free(folder)


def test_a_run_finds_a_folder_of_its_own(tmp_path: Path) -> None:
    assert free_folder(tmp_path, "1f1b") == tmp_path / "1f1b"
    (tmp_path / "1f1b").mkdir()
    assert free_folder(tmp_path, "1f1b") == tmp_path / "1f1b-2"
    assert free_folder(tmp_path, "../up") == tmp_path / "-up"


def test_blocks_are_spread_evenly() -> None:
    assert layers_of(8, 1) == [10]
    assert layers_of(8, 4) == [3, 2, 2, 3]
    assert layers_of(8, 3) == [4, 3, 3]
    assert layers_of(8, 9) is None


def test_too_many_stages_are_refused() -> None:
    with pytest.raises(InputError, match="use --layers 6"):
        trained(small(one_f_one_b(devices=8, microbatches=8)))
