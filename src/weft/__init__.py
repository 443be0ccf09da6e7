"""Weft: pipeline schedules as programs, proved, simulated, drawn and executed.

    from weft.schedules import one_f_one_b
    from weft.simulate import simulate

    timeline = simulate(one_f_one_b(devices=4, microbatches=8))
    timeline.makespan, timeline.bubble, timeline.peak_activations

`import weft` alone loads nothing else. `weft.Pipeline` and `weft.split` bring in torch when they
are first asked for; everything else works without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.runtime import Pipeline, Reference, split

__version__ = "0.1.0"
__all__ = ["Pipeline", "Reference", "__version__", "split"]


def __getattr__(name: str) -> object:
    if name not in ("Pipeline", "Reference", "split"):
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    import weft.runtime

    return getattr(weft.runtime, name)
