"""Synthesis: schedules that nobody wrote, for given times, latencies and caps on memory."""

from weft.plan.synthesis.off import Spread
from weft.plan.synthesis.problem import Delays, Problem, check_size, one_microbatch
from weft.plan.synthesis.synthesis import Effort, Synthesis, improvements, synthesize

__all__ = [
    "Delays",
    "Effort",
    "Problem",
    "Spread",
    "Synthesis",
    "check_size",
    "improvements",
    "one_microbatch",
    "synthesize",
]
