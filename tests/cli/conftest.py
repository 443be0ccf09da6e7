"""Ranks that are launched within a test are warm."""

from tests.runtime.warm import warm_ranks

__all__ = ["warm_ranks"]
