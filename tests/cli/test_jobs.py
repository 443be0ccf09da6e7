"""The file that repeats a run: nothing left to defaults, and the same from any folder."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from weft.cli.jobs import SHAPE, Job, as_config, on_ranks, settings_of
from weft.cli.train import command
from weft.notation import to_text
from weft.request import Sizes, Source, Training
from weft.schedules import one_f_one_b


def asked(*words: str) -> Job:
    """What a command line asks for."""
    given = command.make_context("train", list(words)).params

    def bundle(names: Iterable[str]) -> dict[str, Any]:
        return {name: given[name] for name in names}

    return Job(
        given["schedule"],
        Sizes(**bundle(SHAPE)),
        Training(**bundle(Training.__dataclass_fields__)),
        Source(**bundle(Source.__dataclass_fields__)),
        given["replicas"],
    )


def kept(*words: str) -> dict[str, Any]:
    job = asked(*words)
    return tomllib.loads(as_config(job, settings_of(job)))


def test_sizes_that_went_by_default_are_kept() -> None:
    found = kept("--schedule", "zbv", "-d", "3")
    assert (found["devices"], found["microbatches"], found["stages-per-device"]) == (3, 6, 2)
    assert "data" not in found


def test_every_option_is_a_key() -> None:
    found = kept("--schedule", "chimera", "--pipes", "2", "--variant", "doubling", "-n", "16")
    bundles = (Training, Source)
    names = ["schedule", *SHAPE, *(name for one in bundles for name in one.__dataclass_fields__)]
    missing = {name.replace("_", "-") for name in names} - set(found)
    absent = {"column", "data", "precision", "model", "token-type", "vocabulary", "round", "temper"}
    absent |= {"compress"}
    assert missing == absent
    assert found["predict"] is False
    assert (found["variant"], found["pipes"]) == ("doubling", 2)
    assert found["replicas"] == 1


def test_replicas_multiply_devices_and_microbatches_and_are_kept_apart() -> None:
    job = asked("-d", "2", "-n", "4", "--replicas", "3")
    settings = settings_of(job)
    assert (settings.program.devices, settings.program.microbatches) == (6, 12)
    found = tomllib.loads(as_config(job, settings))
    assert [found[name] for name in ("replicas", "devices", "microbatches")] == [3, 2, 4]


def test_what_auto_came_to_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for gpus, found in ((0, "cpu"), (4, "cuda")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)  # noqa: B023
        settings = kept("--accelerator", "auto", "--share-gpus")
        assert (settings["accelerator"], settings["share-gpus"]) == (found, gpus > 0)


def test_places_are_kept_from_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("program.txt").write_text(to_text(one_f_one_b(devices=2, microbatches=2)))
    Path("my.txt").write_text("to and fro " * 9)
    found = kept("--schedule", "program.txt", "--data", "my.txt")
    assert found["schedule"] == str(tmp_path / "program.txt")
    assert found["data"] == str(tmp_path / "my.txt")
    assert "devices" not in found


def test_what_was_found_in_tokens_is_kept(tmp_path: Path) -> None:
    np.arange(200, dtype="<u2").tofile(tmp_path / "tokens.bin")
    found = kept("--data", str(tmp_path / "tokens.bin"))
    assert (found["token-type"], found["vocabulary"]) == ("uint16", 200)


def test_what_was_found_in_a_saved_dataset_is_kept() -> None:
    found = kept("--data", str(Path(__file__).parents[1] / "train" / "saved"), "--shuffle")
    assert (found["column"], found["vocabulary"], found["shuffle"]) == ("input_ids", 10, True)


def test_a_program_has_the_devices_that_its_file_says() -> None:
    job = asked("--schedule", "program.txt")
    assert on_ranks(job) == job
