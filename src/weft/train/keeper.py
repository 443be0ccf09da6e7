"""The keeper of a run: saves its pipeline while it goes on, and removes what is too old.

Every rank has one and saves; the first one looks after the folder, and reports what is complete.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Protocol

import torch.distributed as dist

from weft.request import Saving
from weft.runtime import Pipeline
from weft.runtime.saves import clean, folder_of, newest, prune
from weft.train.outcome import Notice, Saved, Watch
from weft.train.saves import STEP, other_draws, saved_besides
from weft.train.settings import Settings


class Keeper(Protocol):
    """When a run saves itself, and what it goes on from."""

    def resume(self) -> int:
        """Go on from the newest save; after how many steps that is."""

    def is_due(self, step: int) -> bool:
        """Whether to save after as many steps, when the run goes on."""

    def is_due_at_end(self, step: int) -> bool:
        """Whether to save where the run ends."""

    def save(self, step: int) -> None:
        """Begin to save after as many steps."""

    def look(self) -> None:
        """Report a save that has become complete; remove those that are too old."""


class NoKeeper:
    """A run without a folder begins at its beginning and saves nothing."""

    def resume(self) -> int:
        return 0

    def is_due(self, step: int) -> bool:
        return False

    def is_due_at_end(self, step: int) -> bool:
        return False

    def save(self, step: int) -> None:
        """Never asked for."""

    def look(self) -> None:
        """Nothing is written."""


class FolderKeeper:
    """Saves in a folder; a run that ends early is saved where it ends."""

    def __init__(
        self, pipeline: Pipeline, settings: Settings, saves: Path, saving: Saving, watch: Watch
    ) -> None:
        self._pipeline, self._settings, self._watch = pipeline, settings, watch
        self._saves, self._saving = saves, saving
        self._begun: int | None = None  # the save that is being written
        self._saved = 0  # the last one that was begun

    def resume(self) -> int:
        found = newest(self._saves) if self._saving.resume else None
        if found is None:
            return 0
        if is_first():
            clean(self._saves)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            saved = self._pipeline.load(found)
        for warning in caught:
            self._watch(Notice(str(warning.message)))
        if notice := other_draws(self._settings, saved):
            self._watch(Notice(notice))
        self._saved = int(saved[STEP])
        return self._saved

    def is_due(self, step: int) -> bool:
        every = self._saving.save_every
        return every is not None and step % every == 0

    def is_due_at_end(self, step: int) -> bool:
        is_early = step < self._settings.steps
        return step > self._saved and (is_early or self._saving.save_every is not None)

    def save(self, step: int) -> None:
        besides = saved_besides(self._settings, step)
        self._pipeline.save(folder_of(self._saves, step), extra=besides, wait=False)
        self.look()  # the one before is complete
        self._begun = self._saved = step

    def look(self) -> None:
        begun = self._begun
        if begun is None or not is_first() or newest(self._saves) != folder_of(self._saves, begun):
            return
        self._begun = None
        if self._saving.keep is not None:
            prune(self._saves, keep=self._saving.keep)
        self._watch(Saved(begun))


def is_first() -> bool:
    """Whether this process is the first of its run."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0
