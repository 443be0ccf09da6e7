"""Training: a small GPT on a text, by any program, in as many processes as it has devices."""

from weft.train.data import own_text, text_of
from weft.train.folder import check_free, free_folder, summary, write_run
from weft.train.job import Metrics, Outcome, Settings, checked, trained
from weft.train.launch import given_ranks, launched

__all__ = [
    "Metrics",
    "Outcome",
    "Settings",
    "check_free",
    "checked",
    "free_folder",
    "given_ranks",
    "launched",
    "own_text",
    "summary",
    "text_of",
    "trained",
    "write_run",
]
