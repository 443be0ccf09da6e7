"""The saves of a run: where they lie, which one it goes on from, and whether that is one of it.

What decides the losses of a run is written with every save, so that it can be compared.
"""

from __future__ import annotations

import hashlib
from dataclasses import fields
from pathlib import Path
from typing import Any

from weft.draw.caption import title
from weft.errors import InputError
from weft.ir.digest import digest_of
from weft.request import Saving, Training
from weft.runtime.saves import newest
from weft.runtime.saves.folders import MANIFEST, damaged
from weft.runtime.saves.manifest import read_manifest
from weft.train.data import Data
from weft.train.differences import differences
from weft.train.settings import Settings

STEP, SETTINGS, LAYOUT = "step", "settings", "layout"  # of what is saved besides
LAYOUTS = ("microbatch_size", "accelerator", "reduce")  # which change losses by rounding alone
SAME = ("share_gpus", "shard_optimizer", "offload", "experts")  # which change no loss
LOOKED_AT = 4096  # tokens at either end of the data


def saved_besides(settings: Settings, step: int) -> dict[str, Any]:
    """What is written with a save: after how many steps it is, and what decides the losses."""
    named = {item.name: getattr(settings, item.name) for item in fields(Training)}
    for name in SAME:
        named.pop(name)
    layout = {name: named.pop(name) for name in LAYOUTS}
    program = {"program": title(settings.program), "digest": digest_of(settings.program)}
    named |= {"sequences": settings.sequences, "vocabulary": settings.data.vocabulary}
    named |= {"digest_of_data": _digest_of(settings.data)}
    return {STEP: step, SETTINGS: named, LAYOUT: program | layout}


def resumed_after(settings: Settings, saves: Path, saving: Saving) -> int:
    """After how many steps a run goes on: 0 where nothing is saved; InputError for another run."""
    found = newest(saves)
    if (broken := damaged(saves)) is not None:
        goes_on = "begins at step 1" if found is None else f"goes on from {found}"
        raise InputError(
            f"{broken} is damaged, as it has no {MANIFEST}, and nothing is written over: remove or"
            f" rename it, and the run {goes_on}"
        )
    if found is None:
        return 0
    saved, here = read_manifest(found).run.extra, saved_besides(settings, 0)
    if not all(isinstance(saved.get(key), dict) for key in (SETTINGS, LAYOUT)):
        raise InputError(f"{found} was not saved by `weft train`; load it with Pipeline.load")
    run = saves.parent
    if changed := differences(saved[SETTINGS], here[SETTINGS]):
        raise InputError(
            f"the run in {run} was saved with {', '.join(changed)}, which would change its losses;"
            f" give the settings of the run (--config {run / 'settings.toml'})"
        )
    changed = differences(saved[LAYOUT], here[LAYOUT])
    if changed and not saving.reshape:
        shown = [one for one in changed if not one.startswith("digest")]
        raise InputError(
            f"the run in {run} was saved with {', '.join(shown) or 'another program of that name'};"
            f" allow losses that differ by rounding, and for asynchronous programs by staleness,"
            f" with --reshape, or give the settings of the run (--config {run / 'settings.toml'})"
        )
    return int(saved[STEP])


def other_draws(settings: Settings, saved: dict[str, Any]) -> str | None:
    """What to say of a run whose dropout draws other values than before it was saved."""
    if not settings.dropout or saved[LAYOUT]["microbatch_size"] == settings.microbatch_size:
        return None
    return (
        "microbatches have another size than before the save: dropout draws other values for them,"
        " so that losses will differ from those of a run that was not interrupted"
    )


def _digest_of(data: Data) -> str:
    """What distinguishes data, wherever it lies."""
    tokens = data.tokens()
    digest = hashlib.sha256(str(len(tokens)).encode())
    for part in (tokens[:LOOKED_AT], tokens[-LOOKED_AT:]):
        digest.update(part.astype("<i8").tobytes())
    return digest.hexdigest()[:16]
