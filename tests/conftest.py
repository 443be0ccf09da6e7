"""Property tests have no deadline, and on a build machine no luck.

What is there when all tests are collected (torch, all modules, all tests) stays until the end: no
search for garbage has to walk through it each time. Nor through what tests load besides: with its
first optimizer torch brings in as much again.
"""

import gc
import os
import sys

from hypothesis import settings

settings.register_profile("here", deadline=None)
settings.register_profile("build", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("build" if os.environ.get("CI") else "here")

MANY = 50  # modules
known: set[str] = set()


def pytest_collection() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    known.update(sys.modules)
    gc.freeze()
    gc.enable()


def pytest_runtest_logfinish() -> None:
    if len(sys.modules) > len(known) + MANY:
        known.update(sys.modules)
        gc.collect()
        gc.freeze()
