from __future__ import annotations

import pytest

from tests.verify import programs
from weft.errors import InputError
from weft.ir.graph import Backward
from weft.ir.kinds import Kind, Stream
from weft.ir.lanes import Lane
from weft.ir.program import Program
from weft.ir.values import Value
from weft.lower import updates, wires
from weft.verify import verify


def last_of(program: Program, lane: Lane, count: int) -> list[tuple[Kind, int, int, int | None]]:
    """Kind, pipe, stage and version of the last actions of a lane."""
    actions = list(program.contents()[lane])[-count:]
    return [(a.kind, a.pipe, a.stage, a.version) for a in actions]


def test_every_stage_is_updated_at_the_end_of_its_lane() -> None:
    lowered = updates(programs.gpipe(2, 2))
    for device in (0, 1):
        assert last_of(lowered, Lane(device), 1) == [(Kind.UPDATE, 0, device, 0)]
    assert len(lowered) == len(programs.gpipe(2, 2)) + 2


def test_updates_follow_the_order_in_which_gradients_are_done() -> None:
    lowered = updates(programs.interleaved(2, 4, 2))
    assert last_of(lowered, Lane(0), 2) == [(Kind.UPDATE, 0, 2, 0), (Kind.UPDATE, 0, 0, 0)]


def test_what_does_not_learn_is_not_updated() -> None:
    lowered = updates(programs.two_tower(2, backward=Backward.NONE))
    assert [a.stage for a in lowered.actions if a.kind is Kind.UPDATE] == [1, 2]


def test_copies_of_a_stage_are_summed_before_they_are_updated() -> None:
    lowered = updates(programs.chimera())
    reduces = {d: last_of(lowered, Lane(d, Stream.REDUCE), 2) for d in (0, 1)}
    assert reduces == {
        0: [(Kind.REDUCE, 1, 1, 0), (Kind.REDUCE, 0, 0, 0)],
        1: [(Kind.REDUCE, 0, 1, 0), (Kind.REDUCE, 1, 0, 0)],
    }
    for row, action in enumerate(lowered.actions):
        reads = {
            (lowered.actions[producer].kind, value)
            for producer, value in lowered.dependencies.read_by(row)
        }
        if action.kind is Kind.UPDATE:
            assert reads == {(Kind.REDUCE, Value.WEIGHT_GRADIENT)}
        if action.kind is Kind.REDUCE:
            assert reads == {(Kind.B, Value.WEIGHT_GRADIENT)}


def test_copies_are_summed_in_one_order_on_all_devices() -> None:
    lowered = updates(programs.chimera())
    orders = [
        [action.stage for action in actions]
        for lane, actions in lowered.contents().items()
        if lane.stream is Stream.REDUCE
    ]
    assert orders[0] == orders[1]


def test_steps_unroll_with_their_updates() -> None:
    lowered = updates(programs.gpipe(2, 2)).unrolled(3)
    versions = [a.version for a in lowered.lane(0) if a.kind is Kind.UPDATE]
    assert versions == [0, 1, 2]
    assert verify(lowered).is_valid


def test_passes_commute() -> None:
    program = programs.chimera()
    assert set(updates(wires(program)).contents()) == set(wires(updates(program)).contents())


@pytest.mark.parametrize(
    "program",
    [
        programs.two_bw(2),
        programs.periodic_two_bw(),
        updates(programs.gpipe(1, 1)),
        programs.gpipe(1, 1).unrolled(2),
    ],
)
def test_only_one_step_without_updates_is_lowered(program: Program) -> None:
    with pytest.raises(InputError, match=r"itself|then unroll"):
        updates(program)
