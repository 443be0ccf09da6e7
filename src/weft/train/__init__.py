"""Training: a small GPT on text or tokens, by any program, in a process for each device."""

from weft.train.data import Data, Text, TokenFile, data_of, own_text
from weft.train.events import can_write_events
from weft.train.folder import check_free, free_folder, summary, write_run
from weft.train.job import checked, measured, trained
from weft.train.launch import given_ranks, launched
from weft.train.outcome import Metrics, Outcome
from weft.train.profile import check_cost, doubts, noise
from weft.train.saved import SavedTokens
from weft.train.settings import Settings

__all__ = [
    "Data",
    "Metrics",
    "Outcome",
    "SavedTokens",
    "Settings",
    "Text",
    "TokenFile",
    "can_write_events",
    "check_cost",
    "check_free",
    "checked",
    "data_of",
    "doubts",
    "free_folder",
    "given_ranks",
    "launched",
    "measured",
    "noise",
    "own_text",
    "summary",
    "trained",
    "write_run",
]
