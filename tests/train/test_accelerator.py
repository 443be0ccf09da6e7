"""Which accelerator a job gets, decided by numbers; where a rank sits, and what it sets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from weft.errors import InputError
from weft.schedules import one_f_one_b
from weft.train import Settings, own_text
from weft.train.accelerator import MPS_SHARE, WORKSPACE, Seat, chosen, described, seat, taken

SETTINGS = Settings(one_f_one_b(devices=4, microbatches=4), own_text(), steps=1)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What would be asked of torch on a machine with GPUs, instead of doing it."""
    asked: list[Any] = []
    for name in (MPS_SHARE, WORKSPACE, "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda mode: asked.append(mode))
    before = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    yield asked
    torch.utils.deterministic.fill_uninitialized_memory = before  # type: ignore[attr-defined]
    for name in (MPS_SHARE, WORKSPACE):
        os.environ.pop(name, None)


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("asked", "ranks", "count", "is_sharing", "found"),
    [
        ("cpu", 4, 8, False, "cpu"),
        ("cuda", 4, 4, False, "cuda"),
        ("cuda", 4, 1, True, "cuda"),
        ("auto", 4, 8, False, "cuda"),
        ("auto", 4, 3, False, "cpu"),
        ("auto", 4, 3, True, "cuda"),
        ("auto", 1, 0, True, "cpu"),
    ],
)
def test_what_is_there_decides(
    asked: str, ranks: int, count: int, is_sharing: bool, found: str
) -> None:
    assert chosen(asked, ranks=ranks, gpus=count, is_sharing=is_sharing) == found


@pytest.mark.parametrize(
    ("asked", "count", "is_sharing", "said"),
    [
        ("cuda", 0, False, "sees no GPU here; .* or use --accelerator cpu"),
        ("cuda", 0, True, "sees no GPU here"),
        ("cuda", 1, False, "4 ranks for 1 GPU, .* use -d 1, or .* --share-gpus .*mps-control -d"),
        ("cuda", 3, False, "4 ranks for 3 GPUs, .* use -d 3"),
        ("cpu", 4, True, "--share-gpus: this run is on the CPU; give --accelerator cuda"),
    ],
)
def test_what_is_not_there_is_refused(asked: str, count: int, is_sharing: bool, said: str) -> None:
    with pytest.raises(InputError, match=said):
        chosen(asked, ranks=4, gpus=count, is_sharing=is_sharing)


def test_ranks_go_round_the_gpus_and_share_them_alike() -> None:
    seats = [Seat(rank, 5, 2) for rank in range(5)]
    assert [one.gpu for one in seats] == [0, 1, 0, 1, 0]
    assert {one.share for one in seats} == {33}  # three ranks on the first
    assert Seat(3, 4, 1).share == 25
    assert Seat(3, 4, 4).share is None


def test_a_seat_is_taken_with_settings_that_compute_the_same_again(calls: list[Any]) -> None:
    assert Seat(3, 4, 2).take() == torch.device("cuda", 1)
    assert calls == [1, True]
    assert os.environ[MPS_SHARE] == "50"
    assert os.environ[WORKSPACE] == ":4096:8"


def test_what_a_user_has_set_stays(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MPS_SHARE, "10")
    Seat(0, 4, 1).take()
    assert os.environ[MPS_SHARE] == "10"


def test_a_rank_with_a_gpu_of_its_own_has_all_of_it(calls: list[Any]) -> None:
    Seat(0, 2, 2).take()
    assert MPS_SHARE not in os.environ


def test_torchrun_says_which_rank_of_the_host_it_is(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(monkeypatch, 2)
    assert seat(4) == Seat(0, 4, 2)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert seat(4) == Seat(1, 2, 2)
    assert taken("cuda", 4) == torch.device("cuda", 1)
    assert taken("cpu", 4) == torch.device("cpu")
    assert calls == [1, True]


def test_a_job_decides_on_its_machine(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = replace(SETTINGS, accelerator="auto")
    for count, found in ((0, "cpu"), (3, "cpu"), (4, "cuda")):
        gpus(monkeypatch, count)
        assert asked.on_this_machine().accelerator == found
    sharing = replace(asked, share_gpus=True)
    for count, found in ((0, "cpu"), (3, "cuda")):
        gpus(monkeypatch, count)
        decided = sharing.on_this_machine()
        assert (decided.accelerator, decided.share_gpus) == (found, found == "cuda")
        assert decided.on_this_machine() == decided  # as a rank decides once more
    gpus(monkeypatch, 1)
    with pytest.raises(InputError, match="4 ranks for 1 GPU"):
        replace(SETTINGS, accelerator="cuda").on_this_machine()


def test_words_for_it(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    gpus(monkeypatch, 1)
    assert described("cuda", 4) == "NVIDIA H200, 4 ranks on 1 GPU"
    assert described("cuda", 1) == "NVIDIA H200, 1 rank on 1 GPU"
    assert described("cpu", 4) == "CPU"
