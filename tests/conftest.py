"""Property tests have no deadline, and on a build machine no luck.

What is there when all tests are collected (torch, all modules, all tests) stays until the end: no
search for garbage has to walk through it each time.
"""

import gc
import os

from hypothesis import settings

settings.register_profile("here", deadline=None)
settings.register_profile("build", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("build" if os.environ.get("CI") else "here")


def pytest_collection() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
