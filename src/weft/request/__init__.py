"""Requests: what is asked for, by flags or by a page, as one object with one reader.

    Sizes ─────────┐
    Passes ────────┼──> Request ──> Program, Timeline, proof, steady state
    Prices,        │
    Machine ─> Costs

A `Plan` is a request with a layout, and with what it comes to; `plan_file` has it as a file.
Whatever comes from outside is read by `values`; refusals say what is wrong and what to do.
"""

from weft.request.called import plan_called, request_called
from weft.request.costs import (
    Costs,
    Machine,
    Overrides,
    Prices,
    Speed,
    is_model_file,
    model_called,
)
from weft.request.measured_run import MeasuredRun, even_layers, measured_of, observed
from weft.request.passes import Passes
from weft.request.plan import Plan, Prediction
from weft.request.plan_file import PlanFile, is_plan, plan_from_json, plan_to_json, read_plan
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
    "MeasuredRun",
    "Overrides",
    "Passes",
    "Plan",
    "PlanFile",
    "Prediction",
    "Prices",
    "Refused",
    "Request",
    "Saving",
    "Sizes",
    "Source",
    "Speed",
    "Training",
    "attempts",
    "even_layers",
    "is_file",
    "is_model_file",
    "is_plan",
    "measured_of",
    "model_called",
    "observed",
    "plan_called",
    "plan_from_json",
    "plan_to_json",
    "read_plan",
    "request_called",
    "shape_of",
    "variants",
]
