"""Requests: what is asked for, by flags or by a page, as one object with one reader.

    Sizes ─────────┐
    Passes ────────┼──> Request ──> Program, Timeline, proof, steady state
    Prices,        │
    Machine ─> Costs

Whatever comes from outside is read by `values`; refusals say what is wrong and what to do.
"""

from weft.request.costs import (
    Costs,
    Machine,
    Overrides,
    Prices,
    Speed,
    is_model_file,
    model_called,
)
from weft.request.passes import Passes
from weft.request.request import (
    Attempt,
    Refused,
    Request,
    attempts,
    is_file,
    variants,
)
from weft.request.sizes import DEVICES, Limits, Sizes, shape_of
from weft.request.training import Saving, Source, Training

__all__ = [
    "DEVICES",
    "Attempt",
    "Costs",
    "Limits",
    "Machine",
    "Overrides",
    "Passes",
    "Prices",
    "Refused",
    "Request",
    "Saving",
    "Sizes",
    "Source",
    "Speed",
    "Training",
    "attempts",
    "is_file",
    "is_model_file",
    "model_called",
    "shape_of",
    "variants",
]
