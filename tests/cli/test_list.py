"""`weft list`: every schedule, model and device, and all about one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import refused, weft, weft_json
from weft.cost import DEVICES, MODELS
from weft.notation import read_device, read_model
from weft.schedules import REGISTRY


def test_every_schedule_has_its_line() -> None:
    lines = weft("list").stdout.splitlines()
    for schedule in REGISTRY:
        assert any(schedule.name in line and schedule.summary in line for line in lines)


def test_all_about_one() -> None:
    shown = weft("list", "interleaved-1f1b").stdout
    for fragment in (
        "Megatron-LM",
        "(N + (D - 1)/K)(F + B)",
        "1 or more on each device",
        "at least as many microbatches as devices",
        "--variant ragged",
        "weft draw interleaved-1f1b -d 4 -n 8 -k 2",
    ):
        assert fragment in shown


def test_examples_work() -> None:
    for schedule in REGISTRY:
        shown = weft("list", schedule.name).stdout.splitlines()
        (example,) = (line.split("weft ")[1] for line in shown if line.startswith("try"))
        assert weft(*example.split()).exit_code == 0


def test_json() -> None:
    every = weft_json("list")["schedules"]
    assert [schedule["name"] for schedule in every] == [schedule.name for schedule in REGISTRY]
    one = weft_json("list", "zbv")
    assert one["stages_per_device"] == {"least": 2, "most": 2, "default": 2}
    looped = weft_json("list", "interleaved-1f1b")
    assert looped["stages_per_device"] == {"least": 1, "most": None, "default": 2}
    assert one["claims"]["measure"] == "wall"


def test_schedules_are_a_kind_too() -> None:
    assert weft("list", "schedules").stdout == weft("list").stdout
    assert weft("list", "schedules", "zbv").stdout == weft("list", "zbv").stdout


def test_every_model_has_its_line() -> None:
    lines = weft("list", "models").stdout.splitlines()
    for name, model in MODELS.items():
        assert any(line.startswith(name) and line.endswith(model.source) for line in lines)
    (deepseek,) = (line for line in lines if line.startswith("deepseek-v3"))
    assert deepseek.split()[1:6] == ["671", "B", "36.62", "B", "61"]


def test_every_device_has_its_line() -> None:
    lines = weft("list", "devices").stdout.splitlines()
    for name, device in DEVICES.items():
        assert any(line.startswith(name) and line.endswith(device.source) for line in lines)
    (a100,) = (line for line in lines if line.startswith("a100"))
    assert a100.split()[1:5] == ["312", "TFLOP/s", "74.51", "GiB"]


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (
            "models deepseek-v3",
            ["8 of 256 and 1 shared", "latent of rank 512", "sends       56 MiB"],
        ),
        ("models llama-3-405b", ["128 heads of 128, 8 for keys and values", "1 x 8,192 tokens"]),
        ("models gpt-3", ["96 heads of 128\n", "50,257, tied to the head"]),
        ("devices h200", ["0.2% to 75.4% of the peak, measured", "between the 8 of a node"]),
        ("devices cpu", ["memory no limit", "2 GB/s after 98 us"]),
        ("devices a100", ["products   as fast as the peak"]),
    ],
)
def test_all_about_a_model_or_a_device(words: str, fragments: list[str]) -> None:
    shown = weft("list", *words.split()).stdout
    for fragment in [*fragments, "source", "try"]:
        assert fragment in shown


@pytest.mark.parametrize("words", ["models kimi-k2", "models gpt-cpu", "devices h100"])
def test_their_examples_work(words: str) -> None:
    shown = weft("list", *words.split()).stdout.splitlines()
    (example,) = (line.split("weft ")[1] for line in shown if line.startswith("try"))
    assert weft(*example.split()).exit_code == 0


def test_json_holds_what_files_hold(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    every = weft_json("list", "models")["models"]
    assert [model["name"] for model in every] == list(MODELS)
    one = weft_json("list", "models", "kimi-k2")
    assert one["parameters"] == pytest.approx(1.026e12, rel=1e-3)
    for written in (one, one["model"]):
        path.write_text(json.dumps(written))
        assert read_model(path) == MODELS["kimi-k2"]
    listed = weft_json("list", "devices", "h800")
    for written in (listed, listed["device"]):
        path.write_text(json.dumps(written))
        assert read_device(path) == DEVICES["h800"]


def test_the_nearest_is_suggested() -> None:
    refused(weft("list", "model"), "did you mean 'models'?")
    refused(weft("list", "device", "h200"), "did you mean 'devices'?")
    refused(weft("list", "models", "deepseek-v4"), "did you mean 'deepseek-v3'?")
    refused(weft("list", "devices", "h20"), "did you mean 'h200'?")
    refused(weft("list", "gpt-3"), "gpt-3 is one of the models: weft list models gpt-3")
    refused(weft("list", "zbv", "1f1b"), "'zbv' is none of schedules, models, devices")
