"""Launched ranks: whoever ends early ends the run, by name and at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist

from weft.errors import InputError, WeftError
from weft.train import launched


def ignored(*_: object) -> None:
    """News that nobody wants."""


class Killed:
    """Work whose first rank is killed before it joins any other."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __setstate__(self, state: dict[str, Path]) -> None:
        try:
            state["mark"].touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def __call__(self, _: Callable[..., None]) -> None:
        """Never comes to this."""


def test_a_rank_that_is_killed_while_others_wait_for_it_is_named(tmp_path: Path) -> None:
    text = r"the run ended early: rank [01] was killed by SIGKILL"
    with pytest.raises(WeftError, match=text):
        launched(Killed(tmp_path / "mark"), ignored, ranks=2)


def exit_on_one(_: Callable[..., None]) -> None:
    if dist.get_rank() == 1:
        os._exit(3)
    signal.pause()


def test_a_rank_that_exits_while_others_work_is_named() -> None:
    with pytest.raises(WeftError, match="the run ended early: rank 1 ended with status 3"):
        launched(exit_on_one, ignored, ranks=2)


def refuse_on_one(_: Callable[..., None]) -> None:
    if dist.get_rank() == 1:
        raise InputError("not this way")
    signal.pause()


def test_what_a_rank_refuses_is_reported_as_it_says_it() -> None:
    with pytest.raises(InputError, match=r"^not this way$"):
        launched(refuse_on_one, ignored, ranks=2)


def found(watch: Callable[..., None]) -> int:
    watch(dist.get_rank())
    return dist.get_world_size()


def test_what_rank_0_finds_is_found() -> None:
    news: list[int] = []
    assert launched(found, news.append, ranks=2) == 2
    assert news == [0]
