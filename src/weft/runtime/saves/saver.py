"""The saver of a pipeline: all processes save together, one save after the other, and load."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from weft.errors import InputError, SaveError
from weft.runtime.assembly import Assembly
from weft.runtime.ranks.world import World
from weft.runtime.saves import folders
from weft.runtime.saves.capture import Capture
from weft.runtime.saves.division import offered, read_offers, writers
from weft.runtime.saves.manifest import Manifest, Run, read_manifest
from weft.runtime.saves.packing import JSON
from weft.runtime.saves.restore import Restore
from weft.runtime.saves.writer import SaveFolder, Writer
from weft.runtime.task import Task

T = TypeVar("T")


class Saver:
    """Saves and loads what the processes of a pipeline have.

    seed_of  by which seed this process draws, of that of the run
    """

    def __init__(
        self,
        task: Task,
        parts: Assembly,
        world: World,
        deadline: float | None,
        seed_of: Callable[[int], int],
    ) -> None:
        self._task, self._parts, self._world, self._deadline = task, parts, world, deadline
        self._everyone, self._seed_of = world.everyone, seed_of
        self._writer: Writer | None = None

    def begin(self, folder: Path, extra: Mapping[str, JSON], *, is_copied: bool) -> None:
        """Start to write, once the save before is complete; copies, where training goes on."""
        self.finish()
        self._parts.weights.policy.settle(self._parts.training.steps)
        run = self._together(lambda: self._run(extra), "what is saved besides")
        captured = self._together(
            lambda: Capture(self._task, self._parts, is_piled=run.piled), "what is saved"
        )
        shares = self._everyone.gather(offered(captured.chunks), "who can write what")
        captured.keep(writers([*map(read_offers, shares)]), self._everyone.rank)
        place = self._agreed(folder)
        captured.to_host(is_copied=is_copied)
        self._writer = Writer(place, run, captured.part, captured.chunks, self._world.look)

    def finish(self) -> None:
        """Wait until the last save is complete; refuse to go on where it is not."""
        if self._writer is not None:
            self._together(self.close, "the save")

    def close(self) -> None:
        """The same for this process alone."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.wait()

    def load(self, folder: Path) -> dict[str, Any]:
        """Go on from a save; what the user has saved besides."""
        self.finish()
        manifest, found = self._together(lambda: self._found(folder), "what is loaded")
        are_there = self._all(found.older.are_there)
        is_as_stale = self._all(found.older.is_as_stale)
        position = manifest.run.position if are_there else 0
        found.apply(position, self._seed_of(manifest.run.seed))
        self._everyone.gather(b"", "the end of loading")
        if not is_as_stale or position < manifest.run.position:
            self._warn(manifest.run, position)
        return dict(manifest.run.extra)

    def _found(self, folder: Path) -> tuple[Manifest, Restore]:
        manifest = read_manifest(folder)
        try:
            found = Restore(folder, manifest, self._task, self._parts)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise SaveError(
                f"{folder} cannot be understood: {error!r}; use another save"
            ) from error
        found.read()
        return manifest, found

    def _run(self, extra: Mapping[str, JSON]) -> Run:
        training, policy = self._parts.training, self._parts.weights.policy
        try:
            kept = json.loads(json.dumps(dict(extra)))
        except (TypeError, ValueError) as error:
            raise InputError(f"extra= is not JSON: {error}") from error
        is_piled = policy.is_carried(training.steps - 1)
        if is_piled and (wrong := policy.bad_in_piled(training.steps)) is not None:
            raise InputError(
                f"{wrong}, and its gradients wait for the next update (update=False), which would"
                f" know of that no more: save after the update"
            )
        return Run(
            program=self._task.program.name,
            updates=training.steps,
            position=training.position if self._task.program.period is not None else 0,
            seed=self._parts.draw.seed,
            scale=None if policy.scaling is None else policy.scaling.history,
            pipes=len(self._task.program.placement.pipes),
            piled=is_piled,
            enlarged=policy.scale(training.steps) if is_piled else None,
            extra=kept,
        )

    def _agreed(self, folder: Path) -> SaveFolder:
        """A folder that the first process has made, and all of them see."""
        process, noun = self._everyone.rank, self._everyone.noun
        made = self._together(lambda: folders.begin(folder) if process == 0 else folder, "folders")
        shares = self._everyone.gather(made.name.encode(), "the folder of the save")
        partial = folder.absolute().with_name(shares[0].decode())
        self._together(lambda: _refuse_unseen(partial), "the folder of the save")
        return SaveFolder(partial, folder.absolute(), process, len(shares), self._deadline, noun)

    def _together(self, work: Callable[[], T], what: str) -> T:
        """What the work gives; where it is refused in one process, it is in all of them."""
        found, reason = None, ""
        try:
            found = work()
        except InputError as error:
            reason = str(error)
        reasons = [share.decode() for share in self._everyone.gather(reason.encode(), what)]
        for one in filter(None, reasons):  # the same for all
            raise SaveError(one)
        return found  # type: ignore[return-value]

    def _all(self, is_so: bool) -> bool:
        shares = self._everyone.gather(b"yes" if is_so else b"", "the versions of the save")
        return all(shares)

    def _warn(self, run: Run, position: int) -> None:
        how = "the versions that it needs are there" if position else "from the newest weights"
        warnings.warn(
            f"the save is of {run.program} and goes on by {self._task.program.name}: weights are"
            f" not as stale as they would have been ({how}), so that losses will differ from those"
            f" of a run that was not interrupted",
            stacklevel=4,
        )


def _refuse_unseen(partial: Path) -> None:
    if not partial.is_dir():
        raise SaveError(f"{partial.parent} is not the same folder on all hosts; use a shared one")
