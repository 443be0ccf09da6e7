"""The runtime: torch begins here. A verified program runs on real modules, with exact gradients."""

from weft.runtime import losses
from weft.runtime.evaluation import Evaluation
from weft.runtime.pipeline import Pipeline
from weft.runtime.reference import Reference
from weft.runtime.result import Flight, Result
from weft.runtime.split import Stages, split
from weft.runtime.weights.options import Staleness
from weft.runtime.weights.scaling import Scale

__all__ = [
    "Evaluation",
    "Flight",
    "Pipeline",
    "Reference",
    "Result",
    "Scale",
    "Stages",
    "Staleness",
    "losses",
    "split",
]
