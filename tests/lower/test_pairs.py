"""Pairs dissolved: the same order, a slot for each action, and no overlap to wait for."""

from __future__ import annotations

import numpy as np

from weft.lower import unpaired
from weft.schedules import dualpipe, one_f_one_b
from weft.simulate import simulate
from weft.verify import check


def test_every_action_gets_a_slot_of_its_own() -> None:
    program = dualpipe(devices=4, microbatches=8)
    found = unpaired(program)
    assert program.actions.joined.any()
    assert not found.actions.joined.any()
    for column in ("kind", "stage", "microbatch"):
        np.testing.assert_array_equal(
            getattr(found.actions, column), getattr(program.actions, column)
        )
    assert check(found).is_valid
    assert simulate(found).makespan <= simulate(program).makespan


def test_a_program_without_pairs_stays_as_it_is() -> None:
    program = one_f_one_b(devices=4, microbatches=8)
    assert unpaired(program) is program
