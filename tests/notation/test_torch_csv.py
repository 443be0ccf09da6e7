from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.notation.examples import APART, one_f_one_b, two_pipes
from weft.errors import NotationError
from weft.ir.actions import Action, Pair
from weft.ir.graph import Backward, Graph, Stage
from weft.ir.kinds import Direction, Kind, Stream
from weft.ir.lanes import Channel, Lane
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.lower import unwired, updates, wires
from weft.notation import from_torch_csv, to_text, to_torch_csv
from weft.schedules import REGISTRY, Schedule, Shape
from weft.simulate import simulate
from weft.verify import verify

# As torch 2.13 writes Schedule1F1B for 4 ranks and 6 microbatches: the last rank is wrong.
BROKEN = """\
0F0,0F1,0F2,0F3,0B0,0F4,0B1,0F5,0B2,0B3,0B4,0B5,0REDUCE_GRAD\r
1F0,1F1,1F2,1B0,1F3,1B1,1F4,1B2,1F5,1B3,1B4,1B5,1REDUCE_GRAD\r
2F0,2F1,2B0,2F2,2B1,2F3,2B2,2F4,2B3,2F5,2B4,2B5,2REDUCE_GRAD\r
3F1,3B0,3F2,3B1,3F3,3B2,3F4,3B3,3F5,3B4,3F6,3B5,3REDUCE_GRAD\r
"""

# ScheduleInterleaved1F1B for 2 ranks, 4 microbatches.
INTERLEAVED = """\
0F0,0F1,2F0,2F1,,,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,,2B2,,2B3,,0B2,,0B3
,1F0,1F1,,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,,1B2,,1B3
"""

LOWERED = """\
0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD
1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD
"""

# Weft's form of the same: what needs no word is left out.
WRITTEN = """\
0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD
1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD
"""

# The last receive waits for a send that comes after what waits for it.
LATE = """\
0F0,0RECV_B0,0B0,0SEND_F0
1RECV_F0,1F0,1B0,1SEND_B0
"""
LATER = """\
0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1
1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1RECV_B0,1B0,1SEND_B0,1RECV_B1,1B1,1SEND_F1,1SEND_B1
2RECV_F0,2F0,2RECV_F1,2F1,2B0,2SEND_B0,2B1,2SEND_B1
"""

each_schedule = pytest.mark.parametrize("schedule", list(REGISTRY), ids=lambda s: s.name)


def test_idle_cells_are_skipped_and_the_placement_follows_from_the_rows() -> None:
    program = from_torch_csv(INTERLEAVED, source="/tmp/interleaved.csv")
    assert program.placement == Placement.looped(2, 2)
    assert program.microbatches == 4
    assert program.name == "interleaved"
    assert len(program) == 32


def test_a_table_that_names_a_microbatch_too_many_is_read_for_verification_to_refuse() -> None:
    program = from_torch_csv(BROKEN)
    assert program.microbatches == 6
    assert program.actions[-2] == Action(3, Kind.F, 6)


def test_an_overlapped_cell_is_a_pair() -> None:
    program = from_torch_csv("0F0,(0F1;3B0)OVERLAP_F_B,0I1,0W1\n1F0,2F0")
    slots = list(program.lane(0).slots())
    assert slots[1] == Pair(Action(0, Kind.F, 1), Action(3, Kind.B, 0))
    assert program.placement == Placement.wave(2)


def test_a_table_comes_back() -> None:
    program = one_f_one_b(devices=3, microbatches=4)
    assert from_torch_csv(to_torch_csv(program)) == program


def test_a_pair_is_an_overlapped_cell() -> None:
    lane: list[Action | Pair] = [
        Action(0, Kind.F, 0),
        Pair(Action(0, Kind.F, 1), Action(0, Kind.B, 0)),
    ]
    program = Program.build("p", Placement.straight(1), [lane], microbatches=2)
    assert to_torch_csv(program) == "0F0,(0F1;0B0)OVERLAP_F_B\n"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "rank 0 runs nothing"),
        ("0F0\n,,\n1F0", 2, "rank 1 runs nothing"),
        ("0F0,0F1garbage", 1, "'0F1garbage' is not an action of torch's"),
        ("0F0,0F", 1, "'0F' is not an action"),
        ("0F0,-1F0", 1, "'-1F0' is not an action"),
        ("0F0,0F0\x00", 1, "is not an action"),
        ("0F0\n1F0,1SEND_B", 2, "'1SEND_B' is not an action"),
        ("0F0,0UNSHARD3", 1, "'0UNSHARD3' is not an action"),
        ("0F0\n1RECV_F0", 2, "rank 1 runs nothing"),
        ("0RECV_F0,0F0\n1F0", 1, "0RECV_F0: there is no stage at the other end"),
        ("0F0\n1F0,1SEND_F0", 2, "1SEND_F0: there is no stage at the other end"),
        ("0SEND_F0,0F0\n1RECV_F0,1F0", 1, "0SEND_F0 stands in front of the computation"),
        (LATE, 1, "0SEND_F0 comes too late: rank 0 waits in front of it"),
        (LATER, 2, "1SEND_F1 comes too late: rank 1 waits in front of it"),
        ("0F0,0SEND_F0\n1F0,1RECV_F0", 2, "1RECV_F0 comes after the computation"),
        ("0F0,(0F1;0SEND_F0)OVERLAP_F_B\n1F0", 1, "a pair is two computations"),
        ("0F0,0REDUCE_GRAD,0B0", 1, "0REDUCE_GRAD stands in front of a gradient"),
        ("0F0,0I0,0REDUCE_GRAD,0W0", 1, "0REDUCE_GRAD stands in front of a gradient"),
        ("0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD", 1, "0REDUCE_GRAD stands twice"),
        ("0F0,(0F1;0B0)TOGETHER", 1, "is not an action"),
        ("0F0,(0F1)OVERLAP_F_B", 1, "is not an action"),
        ("0F0,(0F1;0B0;0B1)OVERLAP_F_B", 1, "is not an action"),
        ("0F0\n0B0", 2, "stage 0 runs on ranks 0 and 1"),
        ("0F0\n7F0", None, "no rank runs stage 1, but one runs stage 7"),
        ("0B0", None, "no rank runs a forward of stage 0"),
        ("0F0,0F999999999", 1, "stages (or edges) x microbatches"),
    ],
)
def test_what_is_no_table_is_refused(text: str, line: int | None, reason: str) -> None:
    with pytest.raises(NotationError) as refusal:
        from_torch_csv(text, source="table.csv")
    assert reason in refusal.value.reason
    assert (refusal.value.source, refusal.value.line) == ("table.csv", line)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (Action(0, Kind.R, 0), "recomputation"),
        (Action(0, Kind.OFFLOAD, 0), "offloading"),
        (Action(0, Kind.F, 0, span=2), "over several microbatches"),
        (Action(0, Kind.F, 0, version=1), "weight versions"),
        (Action(0, Kind.F, 0, segment=1), "parts of a layer"),
        (Action(0, Kind.F, 2), "second step"),
    ],
)
def test_what_torch_has_no_word_for_is_not_written(action: Action, words: str) -> None:
    program = Program.build("p", Placement.straight(1), [[action]], microbatches=2)
    with pytest.raises(NotationError, match=words):
        to_torch_csv(program)


def test_all_that_torch_has_no_word_for_is_reported_at_once() -> None:
    lane = [Action(0, Kind.F, 0, span=2), Action(0, Kind.R, 0, span=2)]
    program = Program.build("p", Placement.straight(1), [lane], microbatches=2)
    with pytest.raises(NotationError) as refusal:
        to_torch_csv(program)
    assert refusal.value.reason == (
        "torch's tables know no recomputation, no action over several microbatches; text and JSON"
        " have all of it"
    )


def test_a_frozen_stage_is_not_written() -> None:
    graph = Graph((Stage(backward=Backward.INPUT),), ())
    lane = [Action(0, Kind.F, 0), Action(0, Kind.I, 0)]
    program = Program.build("p", Placement.straight(1), [lane], microbatches=1, graph=graph)
    with pytest.raises(NotationError, match="frozen stage"):
        to_torch_csv(program)


def test_losses_out_of_order_are_not_written() -> None:
    """torch takes the first loss for that of microbatch 0."""
    program = from_torch_csv("0F0,0F1,0B1,0B0\n1F1,1B1,1F0,1B0\n")
    with pytest.raises(NotationError, match="last stage out of order"):
        to_torch_csv(program)


def test_a_second_pipe_is_not_written() -> None:
    with pytest.raises(NotationError, match="second pipe"):
        to_torch_csv(two_pipes())


def test_updates_alone_are_left_out() -> None:
    program = updates(one_f_one_b(devices=2, microbatches=2))
    assert "0U@0" in to_text(program)
    assert to_torch_csv(program) == to_torch_csv(one_f_one_b(devices=2, microbatches=2))


# lowered


def test_a_lowered_table_has_one_channel_from_rank_to_rank() -> None:
    program = from_torch_csv(LOWERED)
    down, up = Channel(0, 1, Direction.BOTH), Channel(1, 0, Direction.BOTH)
    assert set(program.lanes) == {
        Lane(0),
        Lane(1),
        *(Lane(device, Stream.WIRE, channel) for device in (0, 1) for channel in (down, up)),
    }
    contents = program.contents()
    assert list(contents[Lane(0, Stream.WIRE, up)]) == [
        Action(0, Kind.RECV_GRADIENT, microbatch, edge=0) for microbatch in (0, 1)
    ]
    assert verify(program).is_valid


def test_activations_and_gradients_share_a_channel_in_the_order_of_the_row() -> None:
    """Rank 1 of a V sends activations of stage 2 and gradients of stage 1 to rank 0."""
    program = from_torch_csv(to_torch_csv(wires(REGISTRY["zbv"](devices=2, microbatches=2))))
    lane = program.contents()[Lane(1, Stream.WIRE, Channel(1, 0, Direction.BOTH))]
    assert [(action.stage, action.kind) for action in lane] == [
        (2, Kind.SEND_ACTIVATION),
        (2, Kind.SEND_ACTIVATION),
        (1, Kind.SEND_GRADIENT),
        (1, Kind.SEND_GRADIENT),
    ]


def test_a_lowered_program_is_written_with_its_wires_and_reductions() -> None:
    program = unwired(from_torch_csv(LOWERED))
    assert to_torch_csv(updates(wires(program))) == WRITTEN
    assert to_torch_csv(from_torch_csv(LOWERED)) == WRITTEN


def test_sends_may_stand_apart_from_what_they_send() -> None:
    program = from_torch_csv(APART)
    assert verify(program).is_valid
    assert unwired(program) == from_torch_csv("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n")
    assert simulate(program).makespan == simulate(unwired(program)).makespan


def test_a_send_that_leaves_after_another_of_its_channel_is_listed_after_it() -> None:
    """The second value leaves first; who receives them so is right, who does not is refused."""
    sent = "0F0,0F1,0SEND_F1,0SEND_F0,0RECV_B0,0B0,0RECV_B1,0B1\n"
    in_order = sent + "1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n"
    assert verify(from_torch_csv(in_order)).is_valid
    crossed = sent + "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"
    (finding,) = verify(from_torch_csv(crossed)).findings
    assert finding.rule == "wires"
    assert "device 1 expects recv:0-1F0 where send:0-1F1 arrives" in finding.message


def test_what_locks_up_however_early_it_is_sent_is_for_verification_to_say() -> None:
    table = "0F0,0SEND_F0,0RECV_B0,0B0,0F1,0SEND_F1,0RECV_B1,0B1\n"
    table += "1RECV_F0,1RECV_F1,1F0,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n"
    (finding,) = verify(from_torch_csv(table)).findings
    assert finding.rule == "deadlock"


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_sends_moved_back_change_nothing_or_are_refused(data: st.DataObject) -> None:
    """As long as each channel keeps its order, and no rank waits for what it has not sent."""
    name = data.draw(st.sampled_from(["1f1b", "zbv", "interleaved-1f1b", "gpipe"]))
    program = REGISTRY[name](devices=2, microbatches=3)
    table = to_torch_csv(wires(program))
    rows = [moved(row.split(","), data) for row in table.splitlines()]
    text = "\n".join(map(",".join, rows))
    if locks_up(rows):
        with pytest.raises(NotationError, match="comes too late"):
            from_torch_csv(text)
        return
    assert unwired(from_torch_csv(text)) == program
    assert {finding.rule for finding in verify(from_torch_csv(text)).findings} <= {"wires"}


def locks_up(rows: list[list[str]]) -> bool:
    """Whether ranks that go on until a computation lacks its message all stop before the end."""
    place, sent = [0] * len(rows), set[str]()
    while True:
        before = list(place)
        for rank, row in enumerate(rows):
            while place[rank] < len(row) and needs(row[place[rank]], row[: place[rank]]) <= sent:
                sent |= {name for name in [arriving(row[place[rank]])] if name}
                place[rank] += 1
        if place == before:
            return place != [len(row) for row in rows]


def needs(cell: str, earlier: list[str]) -> set[str]:
    """The receives that a computation waits for, of those that its rank has issued."""
    found = re.fullmatch(r"(\d+)([FBI])(\d+)", cell)
    if found is None:
        return set()
    stage, kind, microbatch = found.groups()
    return {f"{stage}RECV_{'F' if kind == 'F' else 'B'}{microbatch}"} & set(earlier)


def arriving(cell: str) -> str | None:
    """The receive that a send answers."""
    found = re.fullmatch(r"(\d+)SEND_([FB])(\d+)", cell)
    if found is None:
        return None
    stage, kind, microbatch = found.groups()
    return f"{int(stage) + (1 if kind == 'F' else -1)}RECV_{kind}{microbatch}"


def moved(row: list[str], data: st.DataObject) -> list[str]:
    """A send of the row, further back."""
    sends = [place for place, cell in enumerate(row) if "SEND" in cell]
    place = data.draw(st.sampled_from(sends))
    cell = row.pop(place)
    row.insert(data.draw(st.integers(place, len(row))), cell)
    return row


def test_one_device_has_no_wires_and_still_scales_its_gradients() -> None:
    program = updates(wires(one_f_one_b(devices=1, microbatches=2)))
    assert to_torch_csv(program) == "0F0,0B0,0F1,0B1,0REDUCE_GRAD\n"


def test_what_never_ends_is_not_lowered() -> None:
    program = from_torch_csv("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n")
    with pytest.raises(NotationError, match="never ends"):
        to_torch_csv(wires(program))


def programs(schedule: Schedule) -> Iterator[Program]:
    """What torch has words for of a schedule and its variants, in a few shapes."""
    least, most = schedule.stages_per_device
    for devices, microbatches in ((2, 4), (3, 6), (4, 8), (4, 16)):
        for variant in ("", *schedule.variants):
            shape = Shape(
                devices=devices,
                microbatches=microbatches,
                stages_per_device=least if most else 2,
                variant=variant,
            )
            if schedule.accepts(shape) is None and is_written(schedule.program(shape)):
                yield schedule.program(shape)


def is_written(program: Program) -> bool:
    try:
        return bool(to_torch_csv(program))
    except NotationError:
        return False


def test_a_schedule_is_written_unless_it_has_pipes_or_versions() -> None:
    unwritten = {schedule.name for schedule in REGISTRY if not list(programs(schedule))}
    asynchronous = {schedule.name for schedule in REGISTRY if schedule.is_asynchronous}
    assert unwritten == {"chimera", "dualpipe", *asynchronous}


@each_schedule
def test_schedules_come_back(schedule: Schedule) -> None:
    for program in programs(schedule):
        assert from_torch_csv(to_torch_csv(program)) == program
        lowered = from_torch_csv(to_torch_csv(updates(wires(program))))
        assert unwired(lowered) == program
        assert verify(lowered).is_valid
        assert simulate(lowered).makespan == simulate(program).makespan


@each_schedule
def test_two_ranks_list_their_messages_in_one_order(schedule: Schedule) -> None:
    """So that one stream for both directions, as NCCL has, cannot lock up either."""
    for program in programs(schedule):
        table = to_torch_csv(updates(wires(program)))
        rows = [messages(program, row) for row in table.splitlines()]
        for rank, other in combinations(range(len(rows)), 2):
            here = [message for message in rows[rank] if other in message[:2]]
            assert here == [message for message in rows[other] if rank in message[:2]]


def messages(program: Program, row: str) -> list[tuple[int, int, str, str]]:
    """Source, destination, direction and microbatch of what a row sends and receives."""
    (pipe,) = program.placement.pipes
    found = []
    for stage, end, direction, microbatch in re.findall(r"(\d+)(SEND|RECV)_([FB])(\d+)", row):
        here = int(stage)
        there = here + (1 if (end == "SEND") == (direction == "F") else -1)
        ends = (here, there) if end == "SEND" else (there, here)
        found.append((pipe[ends[0]], pipe[ends[1]], direction + str(max(ends)), microbatch))
    return found
