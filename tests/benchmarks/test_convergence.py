"""The benchmark of convergence: its models learn, by every method, and theory is as it is known."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

CONVERGENCE = Path(__file__).parents[2] / "benchmarks" / "convergence"


@pytest.fixture(scope="module", autouse=True)
def _importable() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(CONVERGENCE)
        yield


@pytest.fixture(scope="module")
def methods() -> ModuleType:
    return import_module("methods")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images whose brightness is their label."""
    labels = np.arange(440) % 10
    noise = np.random.default_rng(0).integers(0, 3, (len(labels), 64))
    file = tmp_path_factory.mktemp("digits") / "digits.npz"
    np.savez(file, images=noise + labels[:, None], labels=labels)
    return file


def trained(task: str, method: str, digits: Path, rounds: int = 2) -> dict[str, Any]:
    training = import_module("training")
    run = training.Run("curve", task, "adamw", method, 0.002, 0, rounds)
    found: dict[str, Any] = training.trained(run, digits)
    return found


@pytest.mark.parametrize("task", ["digits", "bert", "gpt"])
def test_every_method_trains(task: str, methods: ModuleType, digits: Path) -> None:
    for name in methods.METHODS:
        assert math.isfinite(trained(task, name, digits)["held_out"]), name


@pytest.mark.parametrize("task", ["digits", "bert", "gpt"])
def test_the_synchronous_loss_falls(task: str, digits: Path) -> None:
    found = trained(task, "synchronous", digits, rounds=8)
    assert found["end"] < 0.9 * found["start"]


def test_each_method_is_as_stale_as_it_should_be(digits: Path) -> None:
    """Whatever is stale starts like the others and then differs."""
    ends = {name: trained("gpt", name, digits)["losses"] for name in _stale()}
    assert len({tuple(losses) for losses in ends.values()}) == len(ends)
    assert len({losses[0] for losses in ends.values()}) == 1


def _stale() -> tuple[str, ...]:
    return ("synchronous", "pipedream-2bw", "pipedream-2bw fresh", "wpipe")


def test_data_parallel_and_1f1b_are_one_method(digits: Path) -> None:
    found = import_module("training").agreement("gpt", 2, digits)
    assert max(found["1f1b"], found["data parallel"]) < 1e-12 < found["moved"]


def test_the_largest_rates_on_quadratics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all stages are equally stale, it is the bound of one coordinate."""
    quadratic = import_module("quadratic")
    monkeypatch.setattr(quadratic, "DRAWS", 2)
    known = {"pipedream-2bw": quadratic.bound(1) / 2, "vertical-sync": quadratic.bound(3) / 2}
    for name, share in {**known, "pipedream-2bw fresh": 2 / 3}.items():
        assert quadratic.limits(name)["sgd"] == pytest.approx([share] * 2, rel=1e-3)
