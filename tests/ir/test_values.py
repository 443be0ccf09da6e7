"""What reads what: one test per line of the table in weft.ir.values."""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.actions import Action, Pair
from weft.ir.graph import Backward, Graph, Stage
from weft.ir.kinds import Direction, Kind, Part, Stream, segment
from weft.ir.lanes import Channel, Lane
from weft.ir.placement import Placement
from weft.ir.program import Content, Program
from weft.ir.values import Value

F, B, I, W, R = Kind.F, Kind.B, Kind.I, Kind.W, Kind.R


def _program(
    lanes: Mapping[Lane, Content] | list[Content],
    *,
    graph: Graph | None = None,
    placement: Placement | None = None,
    microbatches: int = 1,
) -> Program:
    stages = len(graph) if graph else 2
    where = placement or Placement.straight(stages)
    return Program.build("test", where, lanes, microbatches=microbatches, graph=graph)


def _reads(program: Program, action: Action) -> set[tuple[Action, Value]]:
    index = list(program.actions).index(action)
    return {
        (program.actions[producer], value)
        for producer, value in program.dependencies.read_by(index)
    }


def test_forward_and_backward_on_a_chain() -> None:
    program = _program([[Action(0, F, 0), Action(0, B, 0)], [Action(1, F, 0), Action(1, B, 0)]])
    assert _reads(program, Action(0, F, 0)) == set()
    assert _reads(program, Action(1, F, 0)) == {(Action(0, F, 0), Value.ACTIVATION)}
    assert _reads(program, Action(1, B, 0)) == {(Action(1, F, 0), Value.SAVED)}
    assert _reads(program, Action(0, B, 0)) == {
        (Action(0, F, 0), Value.SAVED),
        (Action(1, B, 0), Value.GRADIENT),
    }


def test_split_backward() -> None:
    program = _program(
        [
            [Action(0, F, 0), Action(0, I, 0), Action(0, W, 0)],
            [Action(1, F, 0), Action(1, I, 0), Action(1, W, 0)],
        ]
    )
    assert (Action(1, I, 0), Value.GRADIENT) in _reads(program, Action(0, I, 0))
    assert _reads(program, Action(0, W, 0)) == {(Action(0, I, 0), Value.DEFERRED)}


def test_recompute_stands_between_forward_and_backward() -> None:
    lanes: list[Content] = [
        [Action(0, F, 0), Action(0, R, 0), Action(0, B, 0)],
        [Action(1, F, 0), Pair(Action(1, R, 0), Action(1, B, 0))],
    ]
    program = _program(lanes)
    assert _reads(program, Action(0, R, 0)) == {(Action(0, F, 0), Value.SAVED)}
    assert (Action(1, R, 0), Value.SAVED) in _reads(program, Action(1, B, 0))


def test_branches_meet_and_part() -> None:
    graph = Graph((Stage(),) * 4, ((0, 1), (0, 2), (1, 3), (2, 3)))
    program = _program([[Action(s, F, 0), Action(s, B, 0)] for s in range(4)], graph=graph)
    assert _reads(program, Action(3, F, 0)) == {
        (Action(1, F, 0), Value.ACTIVATION),
        (Action(2, F, 0), Value.ACTIVATION),
    }
    assert (Action(1, B, 0), Value.GRADIENT) in _reads(program, Action(0, B, 0))
    assert (Action(2, B, 0), Value.GRADIENT) in _reads(program, Action(0, B, 0))


def test_a_frozen_stage_passes_no_gradient() -> None:
    graph = Graph((Stage(backward=Backward.NONE), Stage()), ((0, 1),))
    program = _program([[Action(0, F, 0)], [Action(1, F, 0), Action(1, B, 0)]], graph=graph)
    assert len(program.dependencies.missing.consumer) == 0
    assert len(program.dependencies) == 2


def test_a_span_reads_whatever_covers_its_microbatches() -> None:
    """Chimera's forward doubling: F over two microbatches, B one at a time."""
    double = Action(0, F, 0, span=2)
    lanes: list[Content] = [
        [double, Action(0, B, 0), Action(0, B, 1)],
        [Action(1, F, 0), Action(1, F, 1), Action(1, B, 0), Action(1, B, 1)],
    ]
    program = _program(lanes, microbatches=2)
    assert _reads(program, Action(1, F, 1)) == {(double, Value.ACTIVATION)}
    assert (double, Value.SAVED) in _reads(program, Action(0, B, 1))


def test_a_stage_over_the_whole_batch_reads_all_of_it() -> None:
    whole = Action(1, F, 0, span=2)
    lanes: list[Content] = [
        [Action(0, F, 0), Action(0, F, 1), Action(0, B, 0), Action(0, B, 1)],
        [whole, Action(1, B, 0, span=2)],
    ]
    program = _program(lanes, microbatches=2)
    assert _reads(program, whole) == {
        (Action(0, F, 0), Value.ACTIVATION),
        (Action(0, F, 1), Value.ACTIVATION),
    }


def test_wires_stand_between_producer_and_reader() -> None:
    down, up = Channel(0, 1, Direction.ACTIVATION), Channel(1, 0, Direction.GRADIENT)
    send, receive = (
        Action(0, Kind.SEND_ACTIVATION, 0, edge=0),
        Action(1, Kind.RECV_ACTIVATION, 0, edge=0),
    )
    back, arrive = (
        Action(1, Kind.SEND_GRADIENT, 0, edge=0),
        Action(0, Kind.RECV_GRADIENT, 0, edge=0),
    )
    program = _program(
        {
            Lane(0): [Action(0, F, 0), Action(0, B, 0)],
            Lane(1): [Action(1, F, 0), Action(1, B, 0)],
            Lane(0, Stream.WIRE, down): [send],
            Lane(1, Stream.WIRE, down): [receive],
            Lane(1, Stream.WIRE, up): [back],
            Lane(0, Stream.WIRE, up): [arrive],
        }
    )
    assert _reads(program, send) == {(Action(0, F, 0), Value.ACTIVATION)}
    assert _reads(program, receive) == {(send, Value.MESSAGE)}
    assert _reads(program, Action(1, F, 0)) == {(receive, Value.ACTIVATION)}
    assert _reads(program, back) == {(Action(1, B, 0), Value.GRADIENT)}
    assert (arrive, Value.GRADIENT) in _reads(program, Action(0, B, 0))
    assert program.messages == 2


def test_offload_goes_through_the_host() -> None:
    away, home = Action(0, Kind.OFFLOAD, 0), Action(0, Kind.ONLOAD, 0)
    program = _program(
        {
            Lane(0): [Action(0, F, 0), Action(0, B, 0)],
            Lane(1): [Action(1, F, 0), Action(1, B, 0)],
            Lane(0, Stream.OFFLOAD): [away],
            Lane(0, Stream.ONLOAD): [home],
        }
    )
    assert _reads(program, away) == {(Action(0, F, 0), Value.SAVED)}
    assert _reads(program, home) == {(away, Value.HOST_COPY)}
    assert (home, Value.SAVED) in _reads(program, Action(0, B, 0))


def test_a_segment_goes_through_the_host_by_itself() -> None:
    """Of two, the first leaves: nobody but its own backward waits for its return."""
    first, last = segment(0, Part.EXPERTS), segment(1, Part.EXPERTS)
    away, home = (Action(0, kind, 0, segment=first) for kind in (Kind.OFFLOAD, Kind.ONLOAD))
    program = _program(
        {
            Lane(0): [
                Action(0, kind, 0, segment=s)
                for kind, s in ((F, first), (F, last), (B, last), (B, first))
            ],
            Lane(1): [Action(1, F, 0), Action(1, B, 0)],
            Lane(0, Stream.OFFLOAD): [away],
            Lane(0, Stream.ONLOAD): [home],
        }
    )
    assert _reads(program, away) == {(Action(0, F, 0, segment=first), Value.SAVED)}
    assert _reads(program, home) == {(away, Value.HOST_COPY)}
    assert (home, Value.SAVED) in _reads(program, Action(0, B, 0, segment=first))
    assert home not in {read for read, _ in _reads(program, Action(0, B, 0, segment=last))}


def test_segments_run_forwards_and_backwards_through_a_layer() -> None:
    """One stage of one layer, its dispatch and combine on the experts stream."""
    parts = [segment(0, part) for part in Part]
    attention, dispatch, experts, combine = parts
    program = _program(
        {
            Lane(0): [
                Action(0, F, 0, segment=attention),
                Action(0, F, 0, segment=experts),
                Action(0, I, 0, segment=experts),
                Action(0, I, 0, segment=attention),
                Action(0, W, 0, segment=experts),
                Action(0, W, 0, segment=attention),
            ],
            Lane(0, Stream.EXPERTS): [
                Action(0, F, 0, segment=dispatch),
                Action(0, F, 0, segment=combine),
                Action(0, I, 0, segment=combine),
                Action(0, I, 0, segment=dispatch),
            ],
        },
        graph=Graph.chain(1),
    )
    assert _reads(program, Action(0, F, 0, segment=dispatch)) == {
        (Action(0, F, 0, segment=attention), Value.SEGMENT)
    }
    assert _reads(program, Action(0, I, 0, segment=combine)) == {
        (Action(0, F, 0, segment=combine), Value.SAVED)
    }
    assert _reads(program, Action(0, I, 0, segment=attention)) == {
        (Action(0, I, 0, segment=dispatch), Value.SEGMENT)
    }
    assert _reads(program, Action(0, W, 0, segment=experts)) == {
        (Action(0, I, 0, segment=experts), Value.DEFERRED)
    }


def test_segments_meet_the_neighbouring_stages_at_their_ends() -> None:
    first, last = segment(0, Part.ATTENTION), segment(0, Part.COMBINE)
    lanes: list[Content] = [
        [
            Action(s, k, 0, segment=g)
            for k, gs in ((F, (first, last)), (B, (last, first)))
            for g in gs
        ]
        for s in range(2)
    ]
    program = _program(lanes)
    assert _reads(program, Action(1, F, 0, segment=first)) == {
        (Action(0, F, 0, segment=last), Value.ACTIVATION)
    }
    assert (Action(1, B, 0, segment=first), Value.GRADIENT) in _reads(
        program, Action(0, B, 0, segment=last)
    )


def test_updates_read_their_own_step_and_feed_the_next() -> None:
    update = [Action(0, Kind.UPDATE, version=v) for v in range(2)]
    lane = [
        Action(0, F, 0, version=0),
        Action(0, B, 0, version=0),
        update[0],
        Action(0, F, 1, version=1),
        Action(0, B, 1, version=1),
        update[1],
    ]
    program = _program([lane], graph=Graph.chain(1))
    assert _reads(program, update[0]) == {(lane[1], Value.WEIGHT_GRADIENT)}
    assert _reads(program, lane[3]) == {(update[0], Value.WEIGHTS)}
    assert _reads(program, update[1]) == {
        (lane[4], Value.WEIGHT_GRADIENT),
        (update[0], Value.WEIGHTS),
    }


def test_a_reduction_reads_every_pipe() -> None:
    """Two copies of one stage on two devices; each pipe's update reads its own reduction."""
    reduce = [Action(0, Kind.REDUCE, version=0, pipe=pipe) for pipe in range(2)]
    update = [Action(0, Kind.UPDATE, version=0, pipe=pipe) for pipe in range(2)]
    lanes: dict[Lane, Content] = {}
    for pipe in range(2):
        lanes[Lane(pipe)] = [Action(0, F, pipe), Action(0, B, pipe), update[pipe]]
        lanes[Lane(pipe, Stream.REDUCE)] = [reduce[pipe]]
    program = Program.build(
        "two copies", Placement(((0,), (1,))), lanes, microbatches=2, pipe_of=[0, 1]
    )
    grads = {
        (Action(0, B, 0), Value.WEIGHT_GRADIENT),
        (Action(0, B, 1, pipe=1), Value.WEIGHT_GRADIENT),
    }
    assert _reads(program, reduce[0]) == _reads(program, reduce[1]) == grads
    assert _reads(program, update[1]) == {(reduce[1], Value.WEIGHT_GRADIENT)}


def test_a_gather_reads_the_updates_of_every_pipe_and_is_read_in_their_place() -> None:
    gather = [Action(0, Kind.GATHER, version=0, pipe=pipe) for pipe in range(2)]
    update = [Action(0, Kind.UPDATE, version=0, pipe=pipe) for pipe in range(2)]
    lanes: dict[Lane, Content] = {}
    for pipe in range(2):
        use = Action(0, F, 2 + pipe, version=1)
        lanes[Lane(pipe)] = [Action(0, F, pipe), Action(0, B, pipe), update[pipe], use]
        lanes[Lane(pipe, Stream.REDUCE)] = [gather[pipe]]
    program = Program.build(
        "two copies", Placement(((0,), (1,))), lanes, microbatches=2, pipe_of=[0, 1]
    )
    made = {(one, Value.WEIGHTS) for one in update}
    assert _reads(program, gather[0]) == _reads(program, gather[1]) == made
    use = Action(0, F, 3, version=1, pipe=1)
    assert _reads(program, use) == {(gather[1], Value.WEIGHTS)}


def test_a_version_is_freed_after_its_last_use() -> None:
    free = Action(0, Kind.FREE, version=0)
    lane = [
        Action(0, F, 0, version=0),
        Action(0, B, 0, version=0),
        Action(0, Kind.UPDATE, version=0),
        free,
    ]
    program = _program([lane], graph=Graph.chain(1))
    assert _reads(program, free) == {(lane[0], Value.WEIGHTS), (lane[1], Value.WEIGHTS)}


def test_what_nothing_computes_is_missing() -> None:
    program = _program([[Action(0, B, 0)], [Action(1, F, 0)]])
    missing = program.dependencies.missing
    wanted = {
        (program.actions[consumer], Value(value))
        for consumer, value in zip(missing.consumer.tolist(), missing.value.tolist(), strict=True)
    }
    assert wanted == {
        (Action(0, B, 0), Value.SAVED),
        (Action(0, B, 0), Value.GRADIENT),
        (Action(1, F, 0), Value.ACTIVATION),
    }
