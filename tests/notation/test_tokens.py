from __future__ import annotations

import pytest

from tests.notation.examples import one_f_one_b
from weft.errors import InputError
from weft.ir.actions import Action, Actions
from weft.ir.kinds import Kind, Part, segment
from weft.notation import token
from weft.notation.tokens import read_token, written

EDGES = ((0, 1), (1, 2))
EDGE_OF = {edge: index for index, edge in enumerate(EDGES)}

ACTIONS = {
    "2F0": Action(2, Kind.F, 0),
    "1B3": Action(1, Kind.B, 3),
    "1I3": Action(1, Kind.I, 3),
    "1W3": Action(1, Kind.W, 3),
    "1R3": Action(1, Kind.R, 3),
    "2F0..1": Action(2, Kind.F, 0, span=2),
    "2F0@3": Action(2, Kind.F, 0, version=3),
    "2F0/0.attention": Action(2, Kind.F, 0, segment=segment(0, Part.ATTENTION)),
    "2B4..7@1/3.combine": Action(2, Kind.B, 4, span=4, version=1, segment=segment(3, Part.COMBINE)),
    "send:1-2F0": Action(1, Kind.SEND_ACTIVATION, 0, edge=1),
    "recv:1-2F0": Action(2, Kind.RECV_ACTIVATION, 0, edge=1),
    "send:1-2B0": Action(2, Kind.SEND_GRADIENT, 0, edge=1),
    "recv:1-2B0": Action(1, Kind.RECV_GRADIENT, 0, edge=1),
    "off:2F0": Action(2, Kind.OFFLOAD, 0),
    "on:2F0/3.experts": Action(2, Kind.ONLOAD, 0, segment=14),
    "on:2F0": Action(2, Kind.ONLOAD, 0),
    "2U@0": Action(2, Kind.UPDATE, version=0),
    "2U@0#1": Action(2, Kind.UPDATE, version=0, pipe=1),
    "2U@0~1": Action(2, Kind.UPDATE, version=0, edge=1),
    "2U@0~5#1": Action(2, Kind.UPDATE, version=0, pipe=1, edge=5),
    "reduce:2@0": Action(2, Kind.REDUCE, version=0),
    "reduce:2@0~1": Action(2, Kind.REDUCE, version=0, edge=1),
    "gather:2@0": Action(2, Kind.GATHER, version=0),
    "gather:2@0~1#1": Action(2, Kind.GATHER, version=0, pipe=1, edge=1),
    "free:2@5#3": Action(2, Kind.FREE, version=5, pipe=3),
}


@pytest.mark.parametrize("word", ACTIONS)
def test_every_kind_of_action_has_its_word(word: str) -> None:
    assert written(Actions.collect([ACTIONS[word]]), EDGES) == [word]


@pytest.mark.parametrize("word", ACTIONS)
def test_every_word_is_read_back(word: str) -> None:
    columns = [[value] for value in read_token(word, EDGE_OF)]
    assert Actions.of(*columns[:3], **_others(columns)) == Actions.collect([ACTIONS[word]])


def _others(columns: list[list[int]]) -> dict[str, list[int]]:
    return dict(zip(("span", "version", "pipe", "edge", "segment"), columns[3:], strict=True))


def test_every_kind_is_among_the_words() -> None:
    assert {action.kind for action in ACTIONS.values()} == set(Kind)


def test_an_action_of_a_program_is_named_by_its_token() -> None:
    assert token(one_f_one_b(devices=2, microbatches=2), 3) == "0B1"


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("2F0garbage", "'2F0garbage' is not an action"),
        ("", "is not an action"),
        ("F0", "is not an action"),
        ("-1F0", "is not an action"),
        ("1.5F0", "is not an action"),
        ("2F-1", "is not an action"),
        ("2F12345678901", "is not an action"),
        ("２F0", "is not an action"),
        ("2F0\x00", "is not an action"),
        ("2F0@", "is not an action"),
        ("2F0/0", "is not an action"),
        ("2F0#x", "is not an action"),
        ("2F" + "0" * 10**6, "2F00000000000000000000000000000000000..."),
        ("3B", "'3B' names no microbatch"),
        ("off:3F", "names no microbatch"),
        ("2X0", "is of no known kind"),
        ("2f0", "is not an action"),
        ("20", "is of no known kind"),
        ("put:2F0", "is of no known kind"),
        ("off:2B0", "is of no known kind"),
        ("2F3..1", "covers no microbatch"),
        ("2F0/0.router", "the parts of a layer are attention, dispatch, experts, combine"),
        ("2F0#1", "stands in the line `pipes`"),
        ("send:2F0", "names an edge"),
        ("1-2F0", "names an edge"),
        ("send:2-1F0", "no edge from 2 to 1"),
        ("send:7-9B0", "no edge from 7 to 9"),
        ("2U0@1", "belongs to no microbatch"),
        ("free:2..3", "belongs to no microbatch"),
    ],
)
def test_what_is_no_action_is_refused(word: str, reason: str) -> None:
    with pytest.raises(InputError) as refusal:
        read_token(word, EDGE_OF)
    assert reason in str(refusal.value)
    assert len(str(refusal.value)) < 250
