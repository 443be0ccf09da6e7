"""Weft: pipeline schedules as programs, proved, simulated, drawn and executed.

    from weft.schedules import one_f_one_b
    from weft.simulate import simulate

    timeline = simulate(one_f_one_b(devices=4, microbatches=8))
    timeline.makespan, timeline.bubble, timeline.peak_activations

`import weft` alone loads nothing else. `weft.Pipeline` and `weft.split` bring in torch when they
are first asked for; everything else works without it. In a notebook a timeline that ends a cell
is shown as its picture; `weft.show(timeline, ...)` shows another one, `weft.explore(timeline)`
the interactive page.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.draw import show
    from weft.runtime import (
        Compression,
        Pipeline,
        Reference,
        Stages,
        Staleness,
        losses,
        recomputed,
        split,
        stored_in_fp8,
    )
    from weft.web import explore

__version__ = "0.1.0"
__all__ = [
    "Compression",
    "Pipeline",
    "Reference",
    "Stages",
    "Staleness",
    "__version__",
    "explore",
    "losses",
    "recomputed",
    "show",
    "split",
    "stored_in_fp8",
]

_HOMES = {
    "Compression": "weft.runtime",
    "Pipeline": "weft.runtime",
    "Reference": "weft.runtime",
    "Stages": "weft.runtime",
    "Staleness": "weft.runtime",
    "losses": "weft.runtime",
    "recomputed": "weft.runtime",
    "split": "weft.runtime",
    "stored_in_fp8": "weft.runtime",
    "show": "weft.draw",
    "explore": "weft.web",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def load_ipython_extension(shell: Any) -> None:
    """Show every Timeline as its picture; IPython calls this for `%load_ext weft`."""

    def bundle(timeline: Any, **which: Any) -> Any:
        return import_module("weft.draw.notebook").bundle(timeline, **which)

    formatter = shell.display_formatter.mimebundle_formatter
    formatter.for_type_by_name("weft.timeline.timeline", "Timeline", bundle)


def _offer_pictures() -> None:
    """Where IPython runs already, nobody has to load the extension."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None:
        load_ipython_extension(shell)


_offer_pictures()
