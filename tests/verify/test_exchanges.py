"""Expert groups: who waits for whom, and in which order tokens are exchanged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft import lower
from weft.errors import InputError
from weft.ir.program import Program
from weft.ir.values import Value
from weft.notation import from_json, from_text, to_json, to_text, token
from weft.schedules import dualpipe, kimi_k2, one_f_one_b
from weft.verify import verify


def twice(program: Program) -> Program:
    return lower.replicated(program, 2, expert_ranks=2)


def swapped(program: Program, lane: str, one: str, other: str) -> Program:
    """With two actions of a lane in each other's place."""
    turned, lines = {one: other, other: one}, to_text(program).splitlines()
    words = [
        [turned.get(word, word) for word in line.split(" ")] if line.startswith(lane) else [line]
        for line in lines
    ]
    return from_text("\n".join(map(" ".join, words)))


def read_by(program: Program, word: str, value: Value) -> set[str]:
    rows = {token(program, row): row for row in range(len(program))}
    found = program.dependencies.read_by(rows[word])
    return {token(program, row) for row, kind in found if kind is value}


def test_groups_are_kept_by_every_pass_and_notation() -> None:
    program = twice(kimi_k2(devices=2, microbatches=4))
    made = lower.executable(lower.experts(program))
    assert made.expert_groups == lower.one_wire(made).expert_groups == ((0, 1),)
    assert from_text(to_text(made)) == made == from_json(to_json(made))
    assert "\nexperts 0 1\n" in to_text(made)
    plain = lower.replicated(kimi_k2(devices=2, microbatches=4), 2)
    assert "\nexperts" not in to_text(plain)
    assert plain != program


def test_each_pipe_of_a_program_has_groups_of_its_own() -> None:
    program = lower.replicated(dualpipe(devices=2, microbatches=4), 4, expert_ranks=2)
    assert program.expert_groups == ((0, 2), (1, 3), (4, 6), (5, 7))


def test_groups_that_cannot_be_are_refused() -> None:
    program = one_f_one_b(devices=2, microbatches=2)
    with pytest.raises(InputError, match="3 replicas do not make whole groups of 2 expert ranks"):
        lower.replicated(program, 3, expert_ranks=2)
    text = to_text(twice(program))
    with pytest.raises(InputError, match="name each of the 2 pipes once"):
        from_text(text.replace("experts 0 1", "experts 0"))
    with pytest.raises(InputError, match=r"as many microbatches as each other, not \[1, 3\]"):
        from_text(text.replace("pipes 0 0 1 1", "pipes 0 1 1 1"))


def test_an_exchange_waits_for_what_every_pipe_brings() -> None:
    program = lower.experts(twice(one_f_one_b(devices=2, microbatches=2)))
    assert read_by(program, "0F1/0.dispatch", Value.TOKENS) == {"0F3/0.attention"}
    assert read_by(program, "0F3/0.dispatch", Value.TOKENS) == {"0F1/0.attention"}
    assert read_by(program, "1B0/0.dispatch", Value.TOKENS) == {"1B2/0.experts"}
    assert not read_by(program, "0F0/0.experts", Value.TOKENS)


def test_a_whole_stage_waits_for_what_every_pipe_brings() -> None:
    program = lower.executable(twice(one_f_one_b(devices=2, microbatches=2)))
    assert read_by(program, "1F0", Value.TOKENS) == {"recv:0-1F2"}
    assert read_by(program, "0B3", Value.TOKENS) == {"0F1", "recv:0-1B1"}


def test_what_is_recomputed_in_a_slot_is_not_waited_for_by_another_pipe() -> None:
    """R and B in one slot: each pipe would wait for the other's."""
    program = lower.recompute(twice(one_f_one_b(devices=2, microbatches=2)))
    assert verify(program).is_valid
    assert verify(lower.executable(program)).is_valid


def test_norms_are_of_all_pipes_of_a_group() -> None:
    """Each has gradients that the others do not have."""
    program = lower.executable(twice(one_f_one_b(devices=2, microbatches=2)), norms=[[0, 1]])
    assert read_by(program, "0U@0", Value.NORM) >= {"reduce:1@0", "reduce:1@0#1"}


@pytest.mark.parametrize(
    ("program", "lane", "swap", "says"),
    [
        (
            lower.experts(twice(kimi_k2(devices=2, microbatches=4))),
            "device 3 experts:",
            ("3I4/0.combine", "3F5/0.dispatch"),
            "device 1 exchanges tokens at 3I0/0.combine and then at 3F1/0.dispatch, device 3 at"
            " 3F5/0.dispatch and then at 3I4/0.combine, so that each waits for the other. On device"
            " 3, move 3I4/0.combine in front of 3F5/0.dispatch.",
        ),
        (
            twice(one_f_one_b(devices=2, microbatches=2)),
            "device 3:",
            ("1B2", "1F3"),
            "device 1 exchanges tokens at 1B0 and then at 1F1, device 3 at 1F3 and then at 1B2, so"
            " that each waits for the other. On device 3, move 1B2 in front of 1F3.",
        ),
    ],
    ids=["segments", "whole stages"],
)
def test_two_orders_of_exchanges_are_refused(
    program: Program, lane: str, swap: tuple[str, str], says: str
) -> None:
    wrong = swapped(program, lane, *swap)
    assert verify(program).is_valid
    assert verify(replace(wrong, expert_groups=())).is_valid
    assert [finding.message.partition(": ")[2] for finding in verify(wrong).findings] == [says]
