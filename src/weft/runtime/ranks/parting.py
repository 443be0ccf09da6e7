"""Parting: ranks leave in good order also where nobody says so.

    pipeline.close()            closes its world
    nobody knows the pipeline   so does Python, as soon as it finds out
    the script ends             so does this, before torch and the connections go

A host may be far ahead of its device by then, and others wait for what that is yet to compute: a
world closes once they have it.
"""

from __future__ import annotations

import atexit
import os
import weakref
from threading import Thread, current_thread, main_thread
from typing import Any

from weft.runtime.ranks.world import World

_OPEN: list[weakref.finalize[..., Any]] = []


def closed_with(owner: object, world: World) -> weakref.finalize[..., Any]:
    """Close a world when nobody knows its owner any more, or at the end of this process."""
    finalizer = weakref.finalize(owner, _close, world, os.getpid())
    finalizer.atexit = False
    _OPEN[:] = [*(one for one in _OPEN if one.alive), finalizer]
    atexit.unregister(_close_all)
    atexit.register(_close_all)  # what was registered last, and needs others, comes first
    return finalizer


def _close_all() -> None:
    for finalizer in reversed(_OPEN):
        finalizer()


def _close(world: World, process: int) -> None:
    if os.getpid() != process:  # of a child, which closes its connections without a word
        return
    if current_thread() is main_thread():
        world.close()
    else:  # which may be in the middle of what came over these connections
        Thread(target=world.close).start()
