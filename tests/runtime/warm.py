"""Ranks that `weft train` and `weft profile` launch from a test: of the fork server, not cold.

A rank of theirs imports torch, which takes seconds, and else does the same. Where a test starts the
command as a process of its own, its ranks are started as a user's are.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.ranks import CONTEXT


@pytest.fixture(scope="session", autouse=True)
def warm_ranks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weft.train.launch.get_context", lambda _: CONTEXT)
        yield
