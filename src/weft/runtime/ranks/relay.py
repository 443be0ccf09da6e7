"""Relay: the thread by which a rank passes news on while it computes, and after it has left.

    rank 1    computes ................................ leaves
    its relay     passes on ... passes on ... passes on ... passes on ... ends, as all have left

So that nobody learns late of a failure because another rank is busy, nor misses what was sent
when a rank between two others had nothing more to do.
"""

from __future__ import annotations

import atexit
import time
from threading import Thread

from weft.runtime.ranks.blame import failure_of, named
from weft.runtime.ranks.links import SLICE, Links

PAUSE = 1e-3  # seconds left to a thread that waits, to take what came itself

_RELAYS: dict[Links, Thread] = {}


@atexit.register
def _end_all() -> None:
    for links, relay in [*_RELAYS.items()]:
        links.leave()
        relay.join()


def start_relay(links: Links) -> None:
    """Pass news on in a thread from now on; none is needed where nobody passes on."""
    if links.tree.passes_on:
        listen(links)


def listen(links: Links) -> None:
    """Take what comes in a thread from now on, though nobody waits for it."""
    if links not in _RELAYS:
        relay = Thread(target=_pass_on, args=(links,), name="weft-relay", daemon=True)
        _RELAYS[links] = relay
        relay.start()


def _pass_on(links: Links) -> None:
    sleeper = links.sleepers.enter(bool, among=links.tree.beyond)
    left_at = None
    try:
        while not links.is_over():
            if links.has_left:
                left_at = left_at or time.monotonic()
                _refuse_long_stay(links, left_at)
            links.sleepers.poll(sleeper, SLICE)
            if len(links.sleepers.waiting) > 1:
                time.sleep(PAUSE)
            links.pump(sleeper, 0)
    except BaseException as error:
        links.fail(failure_of(error, links.rank, links.noun))
    finally:
        links.sleepers.leave(sleeper)
        if links.has_left:
            links.close()
        _RELAYS.pop(links, None)


def _refuse_long_stay(links: Links, since: float) -> None:
    """Fail all where a rank that has left is needed for longer than any wait may take."""
    if links.deadline is not None and time.monotonic() - since > links.deadline:
        others = named(links.remaining(), links.noun)
        links.fail(
            f"{links.noun} {links.rank} has left, and {others} did not within the deadline of"
            f" {links.deadline:g} s after it"
        )
