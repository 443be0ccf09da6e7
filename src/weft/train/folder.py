"""The run folder: what there is of a run, written as it goes on.

program.txt                                          what runs
measured.json, predicted.json                        timelines in Weft's own form
measured.perfetto.json, predicted.perfetto.json      the same for ui.perfetto.dev
metrics.jsonl                                        a line for each step, as soon as it is over
events.out.tfevents.*                                the same for TensorBoard, if installed
summary.json                                         what --json prints
settings.toml                                        what --config takes, from `weft train`
page.html                                            measured over predicted, from `weft train`
plan.json                                            the plan that is run, where one was given
saves/                                               what --resume goes on from

A file is written beside its place and then put there: whoever reads it, or ends the run, finds a
whole one. metrics.jsonl and events grow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Self, TypeAlias

from weft.cost import Cost
from weft.draw import to_perfetto
from weft.errors import InputError
from weft.ir.program import Program
from weft.notation import read_timeline, to_json, to_text
from weft.request import PlanFile, plan_to_json, read_plan
from weft.timeline import Timeline
from weft.train.events import Events
from weft.train.metrics import MetricsFile, metrics_until
from weft.train.outcome import Metrics, News, Notice, Outcome, Saved

Page: TypeAlias = Callable[[Sequence[Timeline], Sequence[str]], str]

METRICS, SUMMARY, SETTINGS, SAVES = "metrics.jsonl", "summary.json", "settings.toml", "saves"
PLAN = "plan.json"


def summary(outcome: Outcome) -> dict[str, object]:
    """The figures of a run; those of versions where there are several."""
    asynchronous = {"staleness": outcome.staleness, "versions": outcome.versions}
    return {
        "losses": outcome.losses,
        "predicted_step": outcome.predicted_step,
        "measured_step": outcome.measured_step,
        "bubble": outcome.bubble._asdict(),
        "peak_memory": outcome.peak_memory,
        "accelerator": outcome.accelerator,
        **(asynchronous if any(outcome.staleness) else {}),
        **({"plan": _plan_summary(outcome.planned)} if outcome.planned else {}),
    }


def _plan_summary(planned: PlanFile) -> dict[str, object]:
    """Which plan was run, and what it predicted."""
    plan = planned.plan
    predicted = plan.predicted or plan.prediction()
    return {
        "file": planned.path,
        "source": plan.source,
        "layers": [*plan.layers],
        "predicted_step": predicted.seconds,
        "bubble": predicted.bubble,
        "memory": [*predicted.memory],
    }


def free_folder(parent: Path, name: str) -> Path:
    """The first of name, name-2, name-3 ... that does not exist."""
    name = re.sub(r"[^\w.-]", "-", name).lstrip(".") or "run"
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(path for path in (parent / one for one in names) if not path.exists())


def check_free(folder: Path) -> None:
    """Refuse to write over anything, before the run rather than after it."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        is_run = (folder / METRICS).exists()
        more = ", or go on with the run in it by --resume" if is_run else ""
        raise InputError(f"{folder} exists; name a folder that does not{more}")


def check_run(folder: Path) -> None:
    """Refuse a folder to go on in that holds something else than a run."""
    if not any((folder / name).exists() for name in (METRICS, SETTINGS, SAVES)):
        check_free(folder)


def outcome_of(folder: Path, program: Program, steps: int) -> Outcome:
    """What a run gave that is over, as its folder has it."""
    figures = _figures(folder / SUMMARY)
    predicted = measured = read_timeline(folder / "predicted.json")
    if (folder / "measured.json").exists():
        measured = read_timeline(folder / "measured.json")
    metrics = tuple(metrics_until(folder / METRICS, steps))
    planned = _planned(folder, figures)
    return Outcome(program, metrics, predicted, measured, figures["accelerator"], planned=planned)


def _figures(path: Path) -> dict[str, Any]:
    """What a run has written of itself at its end."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found["accelerator"], str):
            return found
        reason = f"{path} is damaged"
    except OSError as error:
        reason = f"{path} cannot be read ({error.strerror})"
    except json.JSONDecodeError as error:
        reason = f"{path}, line {error.lineno}, is damaged"
    except (ValueError, KeyError, TypeError, RecursionError):
        reason = f"{path} is damaged"
    raise InputError(
        f"the figures of the run cannot be shown, as {reason}; its saves are as they were. To have"
        f" figures, begin a run in another folder (--out)"
    )


def _planned(folder: Path, figures: dict[str, Any]) -> PlanFile | None:
    """The plan of a run, by the name that its summary has."""
    if "plan" not in figures:
        return None
    return PlanFile(str(figures["plan"]["file"]), read_plan(folder / PLAN))


def cost_of(folder: Path) -> Cost | None:
    """What a run was predicted with, where its folder says so."""
    try:
        return read_timeline(folder / "predicted.json").cost
    except (OSError, InputError):
        return None


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Where a run is written, and how.

    settings    the text of its settings.toml
    page        makes its page.html of timelines and their names
    has_events  whether events are written for TensorBoard
    """

    folder: Path
    settings: str | None = None
    page: Page | None = None
    has_events: bool = False

    @property
    def saves(self) -> Path:
        """The folder of its saves."""
        return self.folder / SAVES


class RunFolder:
    """The folder of a run, there from its first news on.

    What another run left there of later steps than this one begins after is dropped.
    """

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._metrics: MetricsFile | None = None
        self._events: Events | None = None

    def add(self, news: News) -> None:
        """Write what a run has given; an outcome comes first."""
        with _refusing(self._files.folder):
            match news:
                case Outcome():
                    self._show(news)
                case Metrics():
                    self._append(news)
                case Saved() | Notice():
                    """Written elsewhere, or nowhere."""

    def whole(self, outcome: Outcome) -> Outcome:
        """The same with the steps before it was resumed."""
        earlier = self._opened(outcome.after).earlier
        return replace(outcome, metrics=(*earlier, *outcome.metrics), after=0)

    def close(self) -> None:
        """No more is added."""
        for one in (self._metrics, self._events):
            if one is not None:
                one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _show(self, outcome: Outcome) -> None:
        self._opened(outcome.after).synchronise()  # before a save that begins after these steps
        for name, text in _contents(self.whole(outcome), self._files):
            put(self._files.folder / name, text)

    def _append(self, metrics: Metrics) -> None:
        self._opened(metrics.step - 1).add(metrics)
        if self._files.has_events:
            self._events = self._events or Events(self._files.folder, after=metrics.step - 1)
            self._events.add(metrics)

    def _opened(self, after: int) -> MetricsFile:
        if self._metrics is None:
            self._files.folder.mkdir(parents=True, exist_ok=True)
            self._metrics = MetricsFile(self._files.folder / METRICS, after=after)
        return self._metrics


def put(path: Path, text: str) -> None:
    """Write a file whole, or not at all."""
    beside = path.with_name(f".{path.name}.partial")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    """Say which folder cannot be written, and why."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from None


def _contents(outcome: Outcome, files: RunFiles) -> Iterator[tuple[str, str]]:
    timelines = outcome.timelines
    yield "program.txt", to_text(outcome.measured.program)
    for name, timeline in timelines.items():
        yield f"{name}.json", to_json(timeline)
        yield f"{name}.perfetto.json", to_perfetto(timeline)
    if outcome.metrics:
        yield SUMMARY, json.dumps(summary(outcome), allow_nan=False) + "\n"
    if outcome.planned is not None:
        yield PLAN, plan_to_json(outcome.planned.plan)
    if files.settings is not None:
        yield SETTINGS, files.settings
    if files.page is not None:
        yield "page.html", files.page([*timelines.values()], [*timelines])
