"""No small change to a valid program passes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verify import programs
from tests.verify.mutations import mutations
from weft.errors import ProgramError
from weft.ir.actions import Actions
from weft.ir.program import Program
from weft.lower import executable, split, updates, wires
from weft.simulate import simulate
from weft.verify import verify


def accepted(program: Program) -> list[str]:
    return [change.name for change in mutations(program) if verify(change.make()).is_valid]


@pytest.mark.parametrize("name", programs.VALID)
def test_no_mutation_passes(name: str) -> None:
    assert accepted(programs.VALID[name]) == []


@pytest.mark.parametrize("name", ["1f1b", "chimera", "fan-out", "frozen tower", "contrastive"])
def test_no_mutation_passes_after_lowering(name: str) -> None:
    assert accepted(wires(updates(programs.VALID[name]))) == []


@pytest.mark.parametrize("name", ["1f1b", "chimera", "2bw"])
def test_no_mutation_passes_where_weights_are_tied_and_norms_shared(name: str) -> None:
    program = programs.VALID[name]
    every = tuple(range(program.stages))
    assert accepted(executable(program, ties=((0, every[-1]),), norms=(every,))) == []


@settings(deadline=None, max_examples=100)
@given(
    program=st.builds(programs.interleaved, st.integers(2, 4), st.just(12), st.integers(1, 3)),
    is_split=st.booleans(),
    data=st.data(),
)
def test_no_random_mutation_passes(
    program: Program, *, is_split: bool, data: st.DataObject
) -> None:
    program = wires(split(program) if is_split else program)
    assert verify(program).is_valid
    change = data.draw(st.sampled_from(list(mutations(program))))
    assert not verify(change.make()).is_valid, change.name


@settings(deadline=None, max_examples=200)
@given(program=st.sampled_from(list(programs.VALID.values())), data=st.data())
def test_an_order_passes_exactly_if_it_runs(program: Program, data: st.DataObject) -> None:
    """Any order of a lane is either refused or simulated to its end."""
    shuffled = {
        lane: _nearly_ordered(actions, data) for lane, actions in program.contents().items()
    }
    other = program.with_lanes(shuffled)
    if verify(other).is_valid:
        simulate(other)
    elif not (other.actions.version >= 0).any():
        with pytest.raises(ProgramError):
            simulate(other)


def _nearly_ordered(actions: Actions, data: st.DataObject) -> Actions:
    """Up to two neighbours change places."""
    order = np.arange(len(actions))
    for place in data.draw(st.lists(st.integers(0, max(0, len(actions) - 2)), max_size=2)):
        order[place : place + 2] = order[place : place + 2][::-1]
    return actions.take(order)
