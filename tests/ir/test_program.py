"""Program: what the next families need is there: versions, periods, pairs, spans, pipes."""

from __future__ import annotations

import pytest

from weft.errors import InputError
from weft.ir.actions import Action, Pair
from weft.ir.kinds import Kind, Stream
from weft.ir.lanes import Lane, Period
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.ir.versions import resident_versions, staleness
from weft.simulate import simulate

F, B, U = Kind.F, Kind.B, Kind.UPDATE


def double_buffered() -> Program:
    """PipeDream-2BW on 2 devices, 2 microbatches per update: version max(0, t - 1).

    device 0   F0 | F1 B0 F2 B1 U0 | F3 B2 F4@1 B3 U1 ... | F5 B4 B5 U2
    device 1        F0 B0 F1 B1 U0 | F2 B2 F3 B3 U1 ...
    """
    first = [Action(0, F, 0, version=0), Action(0, F, 1, version=0), Action(0, B, 0, version=0)]
    first += [Action(0, F, 2, version=0), Action(0, B, 1, version=0)]
    first += [Action(0, U, version=0)]
    body = [Action(0, F, 3, version=0), Action(0, B, 2, version=0), Action(0, F, 4, version=1)]
    body += [Action(0, B, 3, version=0), Action(0, U, version=1)]
    last = [Action(0, F, 5, version=1), Action(0, B, 4, version=1), Action(0, B, 5, version=1)]
    last += [Action(0, U, version=2)]

    def step(step: int) -> list[Action]:
        version = max(0, step - 1)
        made = [
            Action(1, kind, microbatch, version=version)
            for microbatch in (2 * step, 2 * step + 1)
            for kind in (F, B)
        ]
        return [*made, Action(1, U, version=step)]

    return Program.build(
        "pipedream-2bw",
        Placement.straight(2),
        [[*first, *body, *last], [*step(0), *step(1), *step(2)]],
        microbatches=2,
        period=Period(
            prologue=(len(first), len(step(0))),
            body=(len(body), len(step(1))),
            microbatches=2,
        ),
    )


def test_a_periodic_program_unrolls_to_any_length() -> None:
    program = double_buffered()
    for repeats in (1, 2, 5):
        run = program.unrolled(repeats)
        updates = [a for a in run.actions if a.kind is U and a.stage == 0]
        assert [a.version for a in updates] == list(range(repeats + 2))
        forwards = [a.microbatch for a in run.actions if a.kind is F and a.stage == 0]
        assert forwards == list(range(2 * (repeats + 2)))
        assert run.period is None


def test_versions_are_counted_between_actions() -> None:
    run = double_buffered().unrolled(4)
    assert resident_versions(run) == [2, 2]
    assert staleness(run) == [1, 1]


def test_an_asynchronous_run_has_no_bubble_but_fill_and_drain() -> None:
    run = double_buffered().unrolled(4)
    assert simulate(run).makespan == 6 * 2 * 3 + 3


def test_a_synchronous_program_is_all_body() -> None:
    lane = [Action(0, F, 0), Action(0, B, 0), Action(0, U, version=0)]
    program = Program.build("one", Placement.straight(1), [lane], microbatches=1)
    twice = program.unrolled(2)
    assert [a.microbatch for a in twice.actions if a.kind is F] == [0, 1]
    assert [a.version for a in twice.actions if a.kind is U] == [0, 1]
    assert resident_versions(program) == [1]


def test_a_pair_is_one_slot() -> None:
    lane: list[Action | Pair] = [
        Action(0, F, 0),
        Pair(Action(0, F, 1), Action(0, B, 0)),
        Action(0, B, 1),
    ]
    program = Program.build("pairs", Placement.straight(1), [lane], microbatches=2)
    assert program.slot_of.tolist() == [0, 1, 1, 2]
    timeline = simulate(program)
    assert timeline.start.tolist() == [0, 1, 1, 4]
    assert timeline.end.tolist() == [1, 4, 4, 6]


def test_a_microbatch_belongs_to_one_pipe() -> None:
    program = Program.build(
        "both ways",
        Placement(((0, 1), (1, 0))),
        [
            [Action(0, F, 0), Action(1, F, 1), Action(1, B, 1), Action(0, B, 0)],
            [Action(0, F, 1), Action(1, F, 0), Action(1, B, 0), Action(0, B, 1)],
        ],
        microbatches=2,
        pipe_of=[0, 1],
    )
    assert [a.pipe for a in program.lane(0)] == [0, 1, 1, 0]
    assert program.messages == 4
    assert simulate(program).makespan == 6


def test_equal_programs_have_equal_digests() -> None:
    one, other = double_buffered(), double_buffered()
    assert one == other
    assert one.digest == other.digest
    assert one.unrolled(1) != one
    assert one.unrolled(1).digest != one.unrolled(2).digest


def test_contents_build_the_same_program() -> None:
    program = double_buffered()
    assert program.with_lanes(program.contents()) == program


@pytest.mark.parametrize(
    ("lanes", "pipe_of", "reason"),
    [
        ({Lane(3): []}, [0], "no stage"),
        ({Lane(0): []}, [1], "pipe"),
        ({Lane(0): []}, [0, 0], "belongs"),
    ],
)
def test_impossible_programs_are_refused(
    lanes: dict[Lane, list[Action]], pipe_of: list[int], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        Program.build("bad", Placement.straight(1), lanes, microbatches=1, pipe_of=pipe_of)


def test_every_stream_has_its_lane() -> None:
    lanes: dict[Lane, list[Action]] = {
        Lane(0, stream): [] for stream in Stream if stream is not Stream.WIRE
    }
    program = Program.build("streams", Placement.straight(1), lanes, microbatches=1)
    assert len(program.lanes) == len(Stream) - 1
