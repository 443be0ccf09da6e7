"""The runtime: torch begins here. A verified program runs on real modules, with exact gradients."""

from weft.runtime.delayed import Delayed
from weft.runtime.flowing import Flight
from weft.runtime.pipeline import Pipeline
from weft.runtime.reference import Reference
from weft.runtime.result import Result
from weft.runtime.stage.split import split
from weft.runtime.weights.delay import Delay
from weft.runtime.weights.scaling import Scale

__all__ = [
    "Delay",
    "Delayed",
    "Flight",
    "Pipeline",
    "Reference",
    "Result",
    "Scale",
    "split",
]
