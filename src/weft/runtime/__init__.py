"""The runtime: torch begins here. A verified program runs on real modules, with exact gradients."""

from weft.runtime import losses
from weft.runtime.compression import Compression
from weft.runtime.evaluation import Evaluation
from weft.runtime.pipeline import Pipeline
from weft.runtime.reference import Reference
from weft.runtime.result import Flight, Result
from weft.runtime.split import Stages, split
from weft.runtime.stage.alike import draw_apart
from weft.runtime.stage.segments import layers_of
from weft.runtime.stage.storage.marks import recomputed, stored_in_fp8
from weft.runtime.weights.options import Staleness
from weft.runtime.weights.scaling import Scale

__all__ = [
    "Compression",
    "Evaluation",
    "Flight",
    "Pipeline",
    "Reference",
    "Result",
    "Scale",
    "Stages",
    "Staleness",
    "draw_apart",
    "layers_of",
    "losses",
    "recomputed",
    "split",
    "stored_in_fp8",
]
