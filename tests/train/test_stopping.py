"""Ranks that are asked to end: all of them after the same step, whichever was asked."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch.distributed as dist

from tests.runtime import ranks
from weft.cost import Share
from weft.request import Saving
from weft.schedules import REGISTRY, Shape
from weft.train import Metrics, News, Settings, checked, own_text, trained

NAMES = ("1f1b", "pipedream-2bw")


def job(name: str) -> Settings:
    program = REGISTRY[name].program(Shape(devices=2, microbatches=4, updates=8))
    sizes = {"layers": 2, "hidden": 8, "heads": 1, "context": 8, "steps": 12}
    return Settings(program, own_text(), **sizes)  # type: ignore[arg-type]


def ended(folder: Path) -> list[tuple[int, int | None, list[float]]]:
    """After how many steps a rank ended, by which signal, and the losses when the run goes on."""
    return [_ended(job(name), folder / name, asked) for asked, name in enumerate(NAMES)]


def _ended(settings: Settings, saves: Path, asked: int) -> tuple[int, int | None, list[float]]:
    def watch(news: News) -> None:
        if isinstance(news, Metrics) and news.step == 2 and dist.get_rank() == asked:
            os.kill(os.getpid(), signal.SIGTERM)

    cost = Share().cost(settings.program)
    first = trained(settings, watch, cost=cost, saves=saves)
    rest = trained(settings, cost=cost, saves=saves, saving=Saving(resume=True))
    return len(first.metrics), first.ended_by, [*first.losses, *rest.losses]


def test_all_ranks_end_after_one_step_when_one_is_asked_and_go_on_from_there(
    tmp_path: Path,
) -> None:
    one, other = ranks.run(2, ended, tmp_path)
    assert one == other
    for name, (steps, number, losses) in zip(NAMES, one, strict=True):
        assert 2 <= steps <= 6
        assert number == signal.SIGTERM
        assert losses == checked(job(name))
