"""Starts of ranks: a store for each, whatever earlier ones left in the one that they share."""

from __future__ import annotations

import datetime
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from torch._C._distributed_c10d import HashStore

from weft.errors import RankError
from weft.train.starts import fresh

PATIENCE = datetime.timedelta(seconds=60)


def test_ranks_of_a_start_share_what_earlier_starts_do_not_see() -> None:
    store, ranks = HashStore(), 3
    seen = []
    for start in range(3):
        store.set("weft/starts/knock/1", f"dead{start}")  # of a rank that was killed
        with ThreadPoolExecutor(ranks) as threads:
            ask = partial(fresh, store, ranks=ranks, patience=PATIENCE)
            mine = [*threads.map(ask, range(ranks))]
        assert not mine[2].check(["address"]), "an earlier start has set it"
        mine[0].set("address", str(start))
        seen.append([one.get("address") for one in mine])
    assert seen == [[b"0"] * 3, [b"1"] * 3, [b"2"] * 3]


def test_a_rank_that_never_starts_is_named() -> None:
    with pytest.raises(RankError, match="rank 1 has not started within 0 s"):
        fresh(HashStore(), 0, 2, datetime.timedelta())
