"""The run folder: what remains of a run, written whole or not at all.

program.txt                                          what ran
measured.json, predicted.json                        timelines in Weft's own form
measured.perfetto.json, predicted.perfetto.json      the same for ui.perfetto.dev
metrics.jsonl                                        a line for each step
events.out.tfevents.*                                the same for TensorBoard, if installed
summary.json                                         what --json prints
settings.toml                                        what --config takes, from `weft train`
page.html                                            measured over predicted, from `weft train`
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import count
from pathlib import Path
from types import MappingProxyType

from weft.draw import to_perfetto
from weft.errors import InputError
from weft.notation import to_json, to_text
from weft.train.events import can_write_events, write_events
from weft.train.outcome import Outcome
from weft.train.signals import clearing_up

NOTHING: Mapping[str, str] = MappingProxyType({})


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
    }


def free_folder(parent: Path, name: str) -> Path:
    """The first of name, name-2, name-3 ... that does not exist."""
    name = re.sub(r"[^\w.-]", "-", name).lstrip(".") or "run"
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(path for path in (parent / one for one in names) if not path.exists())


def check_free(folder: Path) -> None:
    """Refuse to write over anything, before the run rather than after it."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists; name a folder that does not")


def write_run(folder: Path, outcome: Outcome, more: Mapping[str, str] = NOTHING) -> None:
    """Write beside the folder, then put it in its place; `more` are texts by their file's name."""
    check_free(folder)
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    with clearing_up():
        try:
            beside.mkdir(parents=True)
            for name, text in (*_contents(outcome), *more.items()):
                (beside / name).write_text(text, encoding="utf-8")
            if can_write_events():
                write_events(beside, outcome.metrics)
            beside.replace(folder)
        except OSError as error:
            raise InputError(f"{folder} cannot be written: {error.strerror}") from None
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def _contents(outcome: Outcome) -> Iterator[tuple[str, str]]:
    yield "program.txt", to_text(outcome.measured.program)
    for name, timeline in (("measured", outcome.measured), ("predicted", outcome.predicted)):
        yield f"{name}.json", to_json(timeline)
        yield f"{name}.perfetto.json", to_perfetto(timeline)
    lines = (json.dumps(asdict(step), allow_nan=False) for step in outcome.metrics)
    yield "metrics.jsonl", "".join(f"{line}\n" for line in lines)
    yield "summary.json", json.dumps(summary(outcome), allow_nan=False) + "\n"
