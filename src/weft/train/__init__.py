"""Training: a small GPT on text or tokens, by any program, in a process for each device."""

from weft.train.data import Data, Text, TokenFile, data_of, own_text
from weft.train.events import can_write_events
from weft.train.folder import (
    RunFiles,
    RunFolder,
    check_free,
    check_run,
    cost_of,
    free_folder,
    outcome_of,
    summary,
)
from weft.train.job import checked, last_step, measured, trained
from weft.train.launch import given_ranks, launched
from weft.train.outcome import Metrics, News, Notice, Outcome, Saved
from weft.train.profile import check_cost, doubts, noise
from weft.train.record import recorded
from weft.train.saved import SavedTokens
from weft.train.saves import resumed_after
from weft.train.settings import Settings
from weft.train.signals import heeding

__all__ = [
    "Data",
    "Metrics",
    "News",
    "Notice",
    "Outcome",
    "RunFiles",
    "RunFolder",
    "Saved",
    "SavedTokens",
    "Settings",
    "Text",
    "TokenFile",
    "can_write_events",
    "check_cost",
    "check_free",
    "check_run",
    "checked",
    "cost_of",
    "data_of",
    "doubts",
    "free_folder",
    "given_ranks",
    "heeding",
    "last_step",
    "launched",
    "measured",
    "noise",
    "outcome_of",
    "own_text",
    "recorded",
    "resumed_after",
    "summary",
    "trained",
]
