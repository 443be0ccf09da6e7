"""Runs of `weft train`: where they write, what they go on from, their processes, their progress."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from weft.cli.progress import bar
from weft.cost import Cost
from weft.draw.caption import percent
from weft.errors import InputError
from weft.notation import read_cost
from weft.request import Saving

if TYPE_CHECKING:
    from weft.train import Metrics, News, Outcome, RunFiles, Settings

RUNS = Path("runs")


def folder_for(
    settings: Settings, saving: Saving, out: Path | None, *, is_kept: bool
) -> Path | None:
    """The folder of a run, if it has one; InputError where it cannot be that."""
    from weft.train import check_free, check_run, free_folder

    if out is not None:
        (check_run if saving.resume else check_free)(out)
        return out
    if saving.resume:
        raise InputError("--resume goes on with a run: name its folder with --out")
    if is_kept:
        return free_folder(RUNS, settings.program.name)
    if saving.save_every is not None:
        raise InputError("--save-every with --json: say where, with --out")
    return None


def run_files(out: Path | None, config: str) -> RunFiles | None:
    """What is written of a run, and where; a message says what it lacks."""
    from weft.train import RunFiles, can_write_events
    from weft.web import page

    if out is None:
        return None
    return RunFiles(out, settings=config, page=page, has_events=can_write_events())


class Run(NamedTuple):
    """A run that is asked for, on a rank of torchrun or where ranks are yet to be started."""

    settings: Settings
    saving: Saving
    files: RunFiles | None
    rank: int | None

    def cost(self, file: Path | None) -> Cost | None:
        """What to predict with: the cost of a file, or of the run before it was interrupted."""
        from weft.train import check_cost, cost_of, doubts

        if file is None:
            known = cost_of(self.files.folder) if self.files and self.saving.resume else None
            return known if known and _fits(self.settings, known) else None
        cost = read_cost(file)
        try:
            check_cost(self.settings, cost)
        except InputError as error:
            raise InputError(f"{file}: {error}") from None
        for doubt in doubts(self.settings, cost):
            self._say(f"{file}: {doubt}")
        return cost

    def done(self, cost: Cost | None) -> tuple[Outcome, int | None]:
        """What the run gave, and the exit status where a signal ended it."""
        from weft.train import last_step, outcome_of

        last, after = last_step(self.settings, self.saving), self._after()
        if self.files and after >= last:
            self._say(f"the run in {self.files.folder} has taken its {after} steps")
            return outcome_of(self.files.folder, self.settings.program, after), None
        outcome, number = self._run(cost)
        if self.files and not self.files.has_events:
            self._say(
                "no events for TensorBoard, as its package is not installed; to have them:"
                " pip install 'weft[tensorboard]'"
            )
        if number is None:
            return outcome, None
        self._say(self._interrupted(outcome, number))
        return outcome, 128 + number

    def _after(self) -> int:
        """After how many steps the run goes on."""
        from weft.train import resumed_after

        if self.files is None or not self.saving.resume:
            return 0
        after = resumed_after(self.settings, self.files.saves, self.saving)
        folder = self.files.folder
        if after:
            self._say(f"going on after step {after} of {folder}")
        else:
            self._say(f"nothing is saved in {folder} yet: beginning at step 1")
        return after

    def _run(self, cost: Cost | None) -> tuple[Outcome, int | None]:
        """What the run gave, and the signal that ended it."""
        from weft.train import heeding, launched, recorded

        words = "profiling the stages" if cost is None else "starting"
        with bar(words, is_shown=not self.rank) as report:
            work = partial(recorded, self.settings, self.files, saving=self.saving, cost=cost)
            watch = Watching(report, self.settings.steps, self._say).take
            if self.rank is not None:
                outcome = work(watch)
                return outcome, outcome.ended_by
            with heeding() as request:
                ranks = self.settings.ranks
                outcome = launched(work, watch, ranks=ranks, request=request)
            return outcome, outcome.ended_by and request.number

    def _interrupted(self, outcome: Outcome, number: int) -> str:
        words = f"ended by {signal.Signals(number).name} after step {outcome.metrics[-1].step}"
        if self.files is None:
            return words
        folder = self.files.folder
        again = f"weft train --config {folder / 'settings.toml'} --out {folder} --resume"
        return f"{words}, and saved in {folder}; to go on: {again}"

    def _say(self, words: str) -> None:
        """A message, once for all ranks."""
        if not self.rank:
            click.echo(f"weft: {words}", err=True)


def _fits(settings: Settings, cost: Cost) -> bool:
    from weft.train import check_cost

    try:
        check_cost(settings, cost)
    except InputError:
        return False
    return True


class Watching:
    """What a bar shows of a run that goes on."""

    def __init__(
        self, report: Callable[[float, str], None], steps: int, say: Callable[[str], None]
    ) -> None:
        self._report, self._steps, self._say = report, steps, say
        self._words, self._fraction, self._saved = "", 0.0, ""

    def take(self, news: News) -> None:
        from weft.train import Metrics, Notice, Outcome, Saved

        match news:
            case Metrics():
                self._words, self._fraction = line_of(news, self._steps), news.step / self._steps
            case Saved():
                self._saved = f"  saved step {news.step}"
            case Notice():
                self._say(news.text)
            case Outcome():
                return
        self._report(self._fraction, self._words + self._saved)


def line_of(metrics: Metrics, steps: int) -> str:
    """The figures of a step in a line."""
    figures = [
        f"step {metrics.step}/{steps}",
        f"loss {metrics.loss:.3f}",
        f"lr {metrics.learning_rate:.1e}",
        "" if metrics.gradient_norm is None else f"norm {metrics.gradient_norm:.2f}",
        f"{metrics.tokens_per_second:,.0f} tokens/s",
        "" if metrics.bubble is None else f"bubble {percent(metrics.bubble)}",
        f"staleness {metrics.staleness}" if metrics.bubble is None else "",
    ]
    return "  ".join(filter(None, figures))
