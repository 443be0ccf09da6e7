"""Along a tree of ranks everything reaches everybody, though ranks on the way are busy or leave."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import enumerate as threads_alive
from typing import Any

import pytest
import torch.distributed as dist

from tests.runtime.exactness import differences_of
from tests.runtime.meshes import meshes
from tests.runtime.models import batches, linear, squared
from tests.runtime.ranks import Ended, over_transports, run
from weft.errors import RankError
from weft.runtime import Pipeline
from weft.runtime.ranks import tree
from weft.runtime.ranks.mesh import Mesh
from weft.runtime.ranks.records import Record
from weft.runtime.ranks.tree import FAN_OUT, tree_of
from weft.schedules import chimera, one_f_one_b

RANKS = 7  # rank 0 over 1 and 2, over 3 to 6
LEAF, INNER, FAR = 3, 1, 6


def use_tree() -> None:
    """Let few ranks have a tree: 0 over 1 and 2, 1 over 3 and 4, and so on."""
    tree.ALL_CONNECTED, tree.FAN_OUT = 1, 2


@pytest.fixture
def treed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tree, "ALL_CONNECTED", 1)
    monkeypatch.setattr(tree, "FAN_OUT", 2)
    yield
    until(lambda: not any(one.name == "weft-relay" for one in threads_alive()))  # all have left


def received_by(mesh: Mesh) -> list[tuple[int, bytes]]:
    """A list that records are put into as they come."""
    found: list[tuple[int, bytes]] = []
    mesh.handle(Record.DATA, lambda origin, content: found.append((origin, content)))
    return found


def until(is_so: Callable[[], object]) -> None:
    """Wait without taking anything from a mesh."""
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        time.sleep(1e-3)


def kill_here(mesh: Mesh) -> None:
    """Let a rank end without a word, as a process does that is killed."""
    mesh._links.failure = "killed"  # so that it reports nothing
    mesh._links.close()


# the shape


@pytest.mark.parametrize("ranks", [17, 100, 256, 1000])
def test_every_rank_is_beyond_exactly_one_link_of_each_other(ranks: int) -> None:
    trees = [tree_of(rank, ranks) for rank in range(ranks)]
    for one in trees:
        beyond = [rank for side in one.beyond.values() for rank in side]
        assert sorted([*beyond, one.rank]) == [*range(ranks)]
        assert len(one.beyond) <= FAN_OUT + 1
        for link, side in one.beyond.items():
            assert link in side
            assert one.rank in trees[link].beyond
            assert side.isdisjoint(trees[link].beyond[one.rank])


def test_few_ranks_are_all_connected() -> None:
    for rank in range(16):
        found = tree_of(rank, 16)
        assert len(found.beyond) == 15
        assert not found.passes_on


# news


@pytest.mark.usefixtures("treed")
def test_gathering_is_in_the_order_of_the_ranks() -> None:
    with meshes(RANKS) as all_of_them, ThreadPoolExecutor(RANKS) as threads:
        for _ in range(3):
            shares = threads.map(lambda mesh: mesh.gather(b"%d" % mesh.rank, "all"), all_of_them)
            assert list(shares) == [[b"%d" % rank for rank in range(RANKS)]] * RANKS


@pytest.mark.usefixtures("treed")
def test_news_pass_ranks_that_are_busy() -> None:
    """From one leaf to another, in order, with nobody on the way in a wait."""
    with meshes(RANKS) as made:
        found = received_by(made[FAR])
        others = [received_by(mesh) for mesh in made[:FAR]]
        for number in range(50):
            made[LEAF].send_all(Record.DATA, b"%d" % number)
        made[FAR].wait(lambda: len(found) == 50, lambda: "news", LEAF)
        assert found == [(LEAF, b"%d" % number) for number in range(50)]
        until(lambda: all(len(one) == 50 for one in (others[0], others[1], others[2])))
        assert others[LEAF] == [], "not back to where they are from"


@pytest.mark.usefixtures("treed")
def test_a_record_for_one_rank_reaches_it_alone() -> None:
    with meshes(RANKS) as made:
        found = [received_by(mesh) for mesh in made]
        made[LEAF].send(FAR, Record.DATA, b"word")
        made[FAR].wait(lambda: found[FAR], lambda: "a word", LEAF)
        assert found[FAR] == [(LEAF, b"word")]
        assert not any(found[:FAR])


# ends


@pytest.mark.usefixtures("treed")
def test_a_death_is_noticed_by_all_though_nobody_waits_on_the_way() -> None:
    with meshes(RANKS) as made:
        kill_here(made[INNER])
        for mesh in (made[FAR], made[LEAF], made[0]):
            says = f"device 1 died; device {mesh.rank} was waiting for news"
            with pytest.raises(RankError, match=says):
                mesh.wait(lambda: False, lambda: "news", 5)


@pytest.mark.usefixtures("treed")
def test_a_failure_passes_ranks_that_are_busy() -> None:
    with meshes(RANKS) as made:
        made[LEAF].fail("out of luck")
        with pytest.raises(RankError, match="out of luck; device 6 was waiting for news"):
            made[FAR].wait(lambda: False, lambda: "news", 5)


@pytest.mark.usefixtures("treed")
def test_who_has_left_still_passes_news_on() -> None:
    """Also the root; and whoever waits for one that has left learns it."""
    with meshes(RANKS) as made:
        found = [received_by(mesh) for mesh in made][FAR]
        made[INNER].close()
        made[0].close()
        made[LEAF].send_all(Record.DATA, b"news")
        made[FAR].wait(lambda: found == [(LEAF, b"news")], lambda: "news", LEAF)
        with pytest.raises(RankError, match="device 1 has left; device 6 was waiting for more"):
            made[FAR].wait(lambda: False, lambda: "more", INNER)


@pytest.mark.usefixtures("treed")
def test_who_dies_after_leaving_is_missed_by_those_it_stood_between() -> None:
    with meshes(RANKS) as made:
        made[INNER].close()
        kill_here(made[INNER])
        with pytest.raises(RankError, match="device 1 died; device 6 was waiting for news"):
            made[FAR].wait(lambda: False, lambda: "news", LEAF)


@pytest.mark.usefixtures("treed")
def test_who_has_left_does_not_stay_beyond_the_deadline() -> None:
    with meshes(RANKS) as made:
        made[INNER].deadline = 0.01
        made[INNER].close()
        says = "device 1 has left, and devices 0, 2, 3, 4, 5 and 6 did not within .* 0.01 s after"
        with pytest.raises(RankError, match=says):
            made[FAR].wait(lambda: False, lambda: "news", LEAF)


@pytest.mark.usefixtures("treed")
def test_what_neighbours_sent_before_leaving_is_received() -> None:
    """Over their own connection, though the tree says before that they have left."""
    with meshes(RANKS, (LEAF, FAR)) as made:
        found = received_by(made[FAR])
        for number in range(20):
            made[LEAF].send(FAR, Record.DATA, b"%d" % number)
        made[LEAF].close()
        until(lambda: LEAF in made[2]._links.left)  # which passes it on to the leaf
        made[FAR].receive(2)
        assert found == []
        made[FAR].wait(lambda: len(found) == 20, lambda: "all of it", LEAF)
        with pytest.raises(RankError, match="device 3 has left"):
            made[FAR].wait(lambda: False, lambda: "more", LEAF)


# processes


def train_over_tree(transport: str) -> list[list[str]]:
    """In each rank: what differs from the unsplit model."""
    use_tree()
    programs = [make(devices=4, microbatches=4) for make in (one_f_one_b, chimera)]
    return [differences_of("layers", program, transport=transport) for program in programs]


def test_four_ranks_train_exactly_over_a_tree() -> None:
    for found in over_transports(4, train_over_tree):
        assert found == [[[], []]] * 4


def pipeline_of(**settings: Any) -> Pipeline:
    use_tree()
    return Pipeline(linear(4), one_f_one_b(devices=4, microbatches=4), loss=squared, **settings)


def said(work: Callable[[], object]) -> str:
    try:
        work()
    except RankError as error:
        return str(error)
    return "nothing"


def end_inner(end: Callable[[], object]) -> str:
    """In each rank: what the second step says when the rank between others does not come to it."""
    pipeline = pipeline_of()
    first, second = batches(4, 2)
    pipeline.step(*first)
    if dist.get_rank() == INNER:
        end()
        return "left"
    return said(lambda: pipeline.step(*second))


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    """Return from the script."""


def test_a_rank_between_others_that_is_killed_is_named_by_all() -> None:
    found = run(4, end_inner, kill)
    assert found[INNER] == Ended(-signal.SIGKILL)
    for rank in (0, 2, 3):
        assert re.match(f"device 1 died; device {rank} was waiting for ", found[rank])


def test_a_rank_between_others_that_leaves_is_named_by_all() -> None:
    found = run(4, end_inner, leave)
    assert found.pop(INNER) == "left"
    assert all(text.startswith("device 1 has left; ") for text in found)


def stay_away() -> str:
    """In each rank: what it says when the last one dies before it makes its pipeline."""
    if dist.get_rank() == 3:
        kill()
    return said(lambda: pipeline_of(deadline=2.0))


def test_a_rank_that_never_comes_is_named_by_those_it_is_not_connected_to() -> None:
    found = run(4, stay_away)
    for text in found[:3]:
        assert re.match(r"nothing came within the deadline of 2 s; .* for device 3 to make", text)
