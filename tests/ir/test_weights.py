"""What tied weights and norms add to what an action reads, line by line of the table."""

from __future__ import annotations

import pytest

from tests.verify import programs
from weft.errors import InputError
from weft.ir.program import Program
from weft.ir.values import Value
from weft.ir.versions import resident_versions
from weft.lower import executable
from weft.notation import from_text, token

TIED_STEP = """\
weft program 1
microbatches 2
graph chain 2
place 0 1
tie 0 1
norm 0 1
device 0: 0F0 0F1 0B0 0B1 0U@0 0U@0~0
device 1: 1F0 1B0 1F1 1B1 1U@0 1U@0~0
device 0 reduce: reduce:0@0~0
device 1 reduce: reduce:1@0~0
"""


def reads(program: Program, word: str) -> dict[Value, set[str]]:
    """What an action reads, in words, by value."""
    row = next(row for row in range(len(program)) if token(program, row) == word)
    found: dict[Value, set[str]] = {}
    for producer, value in program.dependencies.read_by(row):
        found.setdefault(value, set()).add(token(program, producer))
    return found


def without(program: Program, *words: str) -> Program:
    """The program without the actions that these words name."""
    lanes = {
        lane: [
            action
            for row, action in enumerate(actions, start=int(program.bounds[index]))
            if token(program, row) not in words
        ]
        for index, (lane, actions) in enumerate(program.contents().items())
    }
    return program.with_lanes(lanes)


def test_a_tied_weight_is_summed_over_the_gradients_of_all_its_ends() -> None:
    program = from_text(TIED_STEP)
    for word in ("reduce:0@0~0", "reduce:1@0~0"):
        assert reads(program, word) == {Value.WEIGHT_GRADIENT: {"0B0", "0B1", "1B0", "1B1"}}


def test_where_a_stage_has_copies_its_end_is_summed_over_them_first() -> None:
    program = executable(programs.chimera(), ties=((0, 1),))
    assert reads(program, "reduce:1@0~0#1") == {
        Value.WEIGHT_GRADIENT: {"reduce:0@0#1", "reduce:1@0#1"}
    }


def test_an_update_of_a_tied_weight_reads_its_sum_and_the_version_before() -> None:
    program = executable(programs.two_bw(3), ties=((0, 1),))
    assert reads(program, "1U@1~0") == {
        Value.WEIGHT_GRADIENT: {"reduce:1@1~0"},
        Value.WEIGHTS: {"1U@0~0"},
    }
    assert reads(program, "1U@1") == {
        Value.WEIGHT_GRADIENT: {"1B2@0", "1B3@0"},
        Value.WEIGHTS: {"1U@0"},
    }


def test_whoever_computes_with_a_tied_weight_reads_the_version_that_its_home_uses() -> None:
    fresh = from_text(
        """\
weft program 1
microbatches 1
graph chain 2
place 0 1
tie 0 1
device 0: 0F0@0 0F1@0 0B0@0 0U@0 0U@0~0 0F2@1 0B1@0 0U@1 0U@1~0 0B2@1 0U@2 0U@2~0
device 1: 1F0@0 1B0@0 1U@0 1F1@1 1B1@1 1U@1 1U@0~0 1F2@2 1B2@2 1U@2 1U@1~0 1U@2~0
"""
    )
    assert reads(fresh, "1F1@1")[Value.WEIGHTS] == {"1U@0"}
    assert reads(fresh, "1F2@2")[Value.WEIGHTS] == {"1U@1", "1U@0~0"}
    assert reads(fresh, "1B2@2")[Value.WEIGHTS] == {"1U@1", "1U@0~0"}
    assert reads(fresh, "0F2@1")[Value.WEIGHTS] == {"0U@0", "0U@0~0"}


def test_updates_of_a_norm_wait_for_the_last_gradients_of_all_its_stages() -> None:
    program = from_text(TIED_STEP)
    whole = {"0B1", "1B1", "reduce:0@0~0"}
    for word in ("0U@0", "0U@0~0", "1U@0", "1U@0~0"):
        assert reads(program, word)[Value.NORM] == whole


def test_a_norm_counts_the_copies_of_a_stage_once() -> None:
    program = executable(programs.chimera(), norms=((0, 1),))
    for word in ("0U@0", "1U@0#1"):
        assert reads(program, word)[Value.NORM] == {"reduce:0@0", "reduce:1@0"}


def test_a_tied_weight_waits_for_the_norm_of_its_home() -> None:
    program = executable(programs.one_f_one_b(3, 2), ties=((0, 2),), norms=((0,), (1, 2)))
    assert reads(program, "2U@0~0")[Value.NORM] == {"0B1", "reduce:0@0~0"}
    assert reads(program, "2U@0")[Value.NORM] == {"1B1", "2B1"}


def test_what_belongs_to_no_norm_waits_for_none() -> None:
    program = executable(programs.one_f_one_b(3, 2), norms=((0, 1),))
    assert Value.NORM not in reads(program, "2U@0")


def test_a_tied_weight_makes_no_version_of_its_stage() -> None:
    plain, tied = programs.two_bw(4), executable(programs.two_bw(4), ties=((0, 1),))
    assert resident_versions(tied) == resident_versions(plain)


def test_without_its_sum_an_update_of_a_tied_weight_reads_no_gradient() -> None:
    program = without(from_text(TIED_STEP), "reduce:1@0~0")
    assert Value.WEIGHT_GRADIENT not in reads(program, "1U@0~0")


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ({"ties": ((0, 3),)}, "names stage 3"),
        ({"ties": ((0,),)}, "two stages or more"),
        ({"ties": ((1, 0),)}, "in model order"),
        ({"ties": ((0, 0),)}, "each of its stages once"),
        ({"norms": ((0, 7),)}, "names stage 7"),
        ({"norms": ((),)}, "each of its stages once"),
        ({"norms": ((0, 1), (1, 2))}, "one norm, not several"),
    ],
)
def test_what_stages_share_is_checked(
    groups: dict[str, tuple[tuple[int, ...], ...]], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        programs.program("shared", ["0F0 0B0", "1F0 1B0", "2F0 2B0"], 1, **groups)


def test_programs_that_share_something_else_differ() -> None:
    plain = programs.one_f_one_b(3, 2)
    tied = plain.with_lanes(plain.contents(), ties=((0, 2),))
    normed = plain.with_lanes(plain.contents(), norms=((0, 2),))
    assert len({plain.digest, tied.digest, normed.digest}) == 3
    assert tied.unrolled(2).ties == tied.with_lanes(tied.contents()).ties == ((0, 2),)
