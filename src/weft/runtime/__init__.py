"""The runtime: torch begins here. A verified program runs on real modules, with exact gradients."""

from weft.runtime.pipeline import Pipeline
from weft.runtime.reference import Reference
from weft.runtime.result import Result
from weft.runtime.split import split

__all__ = ["Pipeline", "Reference", "Result", "split"]
