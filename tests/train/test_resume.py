"""Runs that are interrupted, and go on: the losses of a run that nobody disturbed, each once."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)

from weft.cost import Share
from weft.errors import InputError
from weft.ir.program import Program
from weft.lower import replicated
from weft.request import Saving
from weft.schedules import REGISTRY, Shape, one_f_one_b
from weft.train import (
    Metrics,
    News,
    Outcome,
    RunFiles,
    Saved,
    Settings,
    checked,
    outcome_of,
    own_text,
    recorded,
    resumed_after,
)

STEPS = 8
SHAPE = Shape(devices=2, microbatches=4, updates=8)


def job(program: Program, **changes: object) -> Settings:
    sizes: dict[str, object] = {"hidden": 8, "heads": 1, "context": 8, "microbatch_size": 2}
    sizes |= {"layers": 4, "steps": STEPS, "dropout": 0.1}
    return Settings(program, own_text(), **(sizes | changes))  # type: ignore[arg-type]


def run(settings: Settings, folder: Path, watch: object = None, **saving: object) -> Outcome:
    """A run in one process, in a folder, saved as asked."""
    asked = Saving(**saving)  # type: ignore[arg-type]
    files = RunFiles(folder, settings="seed = 0\n", has_events=True)
    by_hand = Share().cost(settings.program)
    seen = watch if callable(watch) else (lambda news: None)
    return recorded(settings, files, seen, saving=asked, cost=by_hand)


def steps_of(folder: Path) -> list[int]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


# Of asynchronous ones those that stash versions, that have two stages on a device, and that stash
# nothing: its losses change with a drain.
@pytest.mark.parametrize("name", ["zbv", "pipedream-2bw", "wpipe", "naive-async"])
def test_a_run_that_goes_on_has_the_losses_of_one_that_nobody_disturbed(
    name: str, tmp_path: Path
) -> None:
    settings = job(
        REGISTRY[name].program(
            replace(SHAPE, stages_per_device=REGISTRY[name].stages_per_device[0])
        )
    )
    whole = run(settings, tmp_path / "whole", save_every=3)
    parted = tmp_path / "parted"
    first = run(settings, parted, save_every=3, stop_after=6)
    assert first.losses == whole.losses[:6]
    rest = run(settings, parted, save_every=3, resume=True)
    assert rest.losses == whole.losses == checked(settings, Saving(save_every=3))
    assert [one.learning_rate for one in rest.metrics] == [
        one.learning_rate for one in whole.metrics
    ]
    assert steps_of(parted) == steps_of(tmp_path / "whole") == [*range(1, STEPS + 1)]
    saved = sorted(path.name for path in (parted / "saves").iterdir())
    assert saved == ["step-000003", "step-000006", "step-000008"]


class Killed(BaseException):
    """As if a process had ended: nothing that runs later is saved."""


def killed_at(step: int) -> object:
    def watch(news: News) -> None:
        if isinstance(news, Metrics) and news.step == step:
            raise Killed

    return watch


def test_a_run_that_is_killed_leaves_what_it_has_and_goes_on_from_its_last_save(
    tmp_path: Path,
) -> None:
    settings = job(one_f_one_b(devices=2, microbatches=4))
    with pytest.raises(Killed):
        run(settings, tmp_path, killed_at(5), save_every=3)
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5]
    left = {path.name for path in tmp_path.iterdir() if not path.name.startswith("events")}
    names = {"metrics.jsonl", "program.txt", "saves", "settings.toml", "summary.json"}
    timelines = {
        f"{name}{end}" for name in ("measured", "predicted") for end in (".json", ".perfetto.json")
    }
    assert left == names | timelines
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')  # as a full disk cuts a line
    news: list[News] = []
    outcome = run(settings, tmp_path, news.append, save_every=3, keep=1, resume=True)
    assert outcome.losses == checked(settings)
    assert [one.step for one in news if isinstance(one, Metrics)] == [4, 5, 6, 7, 8]
    assert [one.step for one in news if isinstance(one, Saved)] == [6, 8]
    assert [path.name for path in (tmp_path / "saves").iterdir()] == ["step-000008"]
    assert json.loads((tmp_path / "summary.json").read_text())["losses"] == outcome.losses
    events = EventAccumulator(str(tmp_path)).Reload().Scalars("loss")
    assert [event.step for event in events] == steps_of(tmp_path) == [*range(1, STEPS + 1)]


def test_a_run_that_is_killed_before_its_first_save_begins_again(tmp_path: Path) -> None:
    settings = job(one_f_one_b(devices=2, microbatches=4))
    with pytest.raises(Killed):
        run(settings, tmp_path, killed_at(2), save_every=3, resume=True)
    outcome = run(settings, tmp_path, save_every=3, resume=True)
    assert outcome.losses == checked(settings)
    assert steps_of(tmp_path) == [*range(1, STEPS + 1)]


def test_a_damaged_save_is_refused_before_the_run_goes_on_from_the_one_before(
    tmp_path: Path,
) -> None:
    settings, saves = job(one_f_one_b(devices=2, microbatches=4)), tmp_path / "saves"
    run(settings, tmp_path, save_every=2, stop_after=4)
    asked = Saving(save_every=2, resume=True)
    (saves / "step-000004" / "weft.json").unlink()
    said = r"step-000004 is damaged, as it has no weft\.json.*remove or rename it, and the run goes"
    with pytest.raises(InputError, match=f"{said} on from .*step-000002"):
        resumed_after(settings, saves, asked)
    (saves / "step-000002" / "weft.json").unlink()
    with pytest.raises(InputError, match=r"step-000002 is damaged.* and the run begins at step 1"):
        resumed_after(settings, saves, asked)


def test_a_damaged_save_before_the_newest_is_in_nobodys_way(stopped: Path, tmp_path: Path) -> None:
    settings, saves = job(one_f_one_b(devices=2, microbatches=4)), tmp_path / "saves"
    shutil.copytree(stopped / "saves", saves)
    (saves / "step-000001").mkdir()
    (saves / "step-000001" / "__0_0.distcp").touch()
    assert resumed_after(settings, saves, Saving(resume=True)) == 2


@pytest.mark.parametrize(
    ("name", "number"), [("1f1b", signal.SIGTERM), ("pipedream-2bw", signal.SIGINT)]
)
def test_a_signal_saves_and_ends_a_run(name: str, number: signal.Signals, tmp_path: Path) -> None:
    settings = job(REGISTRY[name].program(SHAPE))

    def watch(news: News) -> None:
        if isinstance(news, Metrics) and news.step == 3:
            os.kill(os.getpid(), number)

    outcome = run(settings, tmp_path, watch)
    assert outcome.ended_by == number
    ended = outcome.metrics[-1].step
    assert 3 <= ended <= 5
    assert [path.name for path in (tmp_path / "saves").iterdir()] == [f"step-{ended:06d}"]
    assert run(settings, tmp_path, resume=True).losses == checked(settings)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 7}, "seed 0 instead of 7"),
        ({"steps": 9, "dropout": 0.0}, "steps 8 instead of 9, dropout 0.1 instead of 0"),
        ({"learning_rate": 1e-3}, "learning_rate 0.003 instead of 0.001"),
        ({"microbatch_size": 4}, "sequences 8 instead of 16"),
        ({"precision": "bf16"}, "precision None instead of bf16"),
    ],
)
def test_other_settings_are_refused_by_name(
    changes: dict[str, object], said: str, stopped: Path
) -> None:
    settings = job(one_f_one_b(devices=2, microbatches=4), **changes)
    with pytest.raises(InputError, match=f"saved with {said}, which would change its losses"):
        resumed_after(settings, stopped / "saves", Saving(resume=True, reshape=True))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that ended after its second step."""
    folder = tmp_path_factory.mktemp("run")
    run(job(one_f_one_b(devices=2, microbatches=4)), folder, stop_after=2)
    return folder


def test_another_program_is_refused_unless_losses_may_differ_by_rounding(stopped: Path) -> None:
    settings = job(REGISTRY["zbv"].program(Shape(devices=2, microbatches=4, stages_per_device=2)))
    said = "1f1b: 2 devices, 4 microbatches instead of zbv: 2 devices.*--reshape"
    with pytest.raises(InputError, match=said):
        resumed_after(settings, stopped / "saves", Saving(resume=True))
    assert resumed_after(settings, stopped / "saves", Saving(resume=True, reshape=True)) == 2


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("summary.json", '{"losses": [3.5, "accel', "summary.json, line 1, is damaged"),
        ("summary.json", "[]", "summary.json is damaged"),
        ("summary.json", '{"accelerator": 1}', "summary.json is damaged"),
        ("metrics.jsonl", '{"step": 1 "loss": 2}\n', "metrics.jsonl, line 1, is damaged: '{"),
        ("metrics.jsonl", "{}\n", "metrics.jsonl, line 1, is damaged: '{}' are no metrics"),
    ],
)
def test_damaged_figures_of_a_run_are_refused_by_file_and_line(
    name: str, text: str, said: str, stopped: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    (folder / name).write_text(text)
    said = f"{re.escape(said)}.* begin a run in another folder"
    with pytest.raises(InputError, match=said):
        outcome_of(folder, one_f_one_b(devices=2, microbatches=4), 2)


def test_another_text_is_refused(stopped: Path) -> None:
    settings = job(one_f_one_b(devices=2, microbatches=4))
    text = own_text()
    other = replace(settings, data=replace(text, text=text.text[::-1]))
    with pytest.raises(InputError, match="digest_of_data"):
        resumed_after(other, stopped / "saves", Saving(resume=True))


@pytest.mark.parametrize(
    ("program", "size"),
    [
        (REGISTRY["zbv"].program(Shape(devices=1, microbatches=8, stages_per_device=2)), 2),
        (one_f_one_b(devices=2, microbatches=8), 2),
    ],
    ids=["another program", "one replica"],
)
def test_a_run_goes_on_on_fewer_devices_with_the_same_batches(
    program: Program, size: int, tmp_path: Path
) -> None:
    """A node did not come back."""
    settings = job(replicated(one_f_one_b(devices=2, microbatches=4), 2), dropout=0.0)
    whole = checked(settings)
    assert run(settings, tmp_path, stop_after=4).losses == whole[:4]
    fewer = job(program, dropout=0.0, microbatch_size=size)
    outcome = run(fewer, tmp_path, resume=True, reshape=True)
    assert outcome.losses == pytest.approx(whole, rel=1e-5)
    assert steps_of(tmp_path) == [*range(1, STEPS + 1)]
