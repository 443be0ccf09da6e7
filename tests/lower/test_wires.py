from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verify import programs
from weft.cost import Share
from weft.errors import InputError
from weft.ir.actions import Action
from weft.ir.graph import Graph
from weft.ir.kinds import Direction, Kind, Stream
from weft.ir.lanes import Channel, Lane
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.lower import messages, unwired, wires
from weft.simulate import simulate


def wire_lanes(program: Program) -> dict[Lane, list[Action]]:
    return {
        lane: list(actions)
        for lane, actions in program.contents().items()
        if lane.stream is Stream.WIRE
    }


def test_each_crossing_value_gets_a_send_and_a_receive_in_one_order() -> None:
    lowered = wires(programs.program("1f1b", ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"], 2))
    down, up = Channel(0, 1, Direction.ACTIVATION), Channel(1, 0, Direction.GRADIENT)
    assert wire_lanes(lowered) == {
        Lane(0, Stream.WIRE, down): [Action(0, Kind.SEND_ACTIVATION, m, edge=0) for m in (0, 1)],
        Lane(1, Stream.WIRE, down): [Action(1, Kind.RECV_ACTIVATION, m, edge=0) for m in (0, 1)],
        Lane(1, Stream.WIRE, up): [Action(1, Kind.SEND_GRADIENT, m, edge=0) for m in (0, 1)],
        Lane(0, Stream.WIRE, up): [Action(0, Kind.RECV_GRADIENT, m, edge=0) for m in (0, 1)],
    }


def test_a_channel_sends_in_the_order_of_computation_and_receives_in_that_order() -> None:
    lowered = wires(programs.program("any", ["0F1 0F0 0B0 0B1", "1F0 1F1 1B0 1B1"], 2))
    down = Channel(0, 1, Direction.ACTIVATION)
    for device in (0, 1):
        lane = wire_lanes(lowered)[Lane(device, Stream.WIRE, down)]
        assert [action.microbatch for action in lane] == [1, 0]


def test_a_local_hand_off_gets_nothing() -> None:
    fold = programs.program(
        "fold", ["0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0"], 1, placement=Placement.wave(2)
    )
    assert len(messages(fold)) == 4
    alone = programs.program("alone", ["0F0 1F0 1B0 0B0"], 1, placement=Placement(((0, 0),)))
    assert wires(alone) == alone


def test_fan_out_sends_once_for_each_edge() -> None:
    lowered = wires(programs.fan_out())
    sends = [a for a in lowered.actions if a.kind is Kind.SEND_ACTIVATION and a.microbatch == 0]
    assert sorted((a.stage, a.edge) for a in sends) == [(0, 0), (0, 1), (1, 2), (2, 3)]


def test_two_edges_between_two_devices_share_a_channel() -> None:
    graph = Graph.inception(2)
    lanes = ["0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0"]
    placement = Placement(((0, 1, 1, 0),))
    lowered = wires(programs.program("shared", lanes, 1, graph=graph, placement=placement))
    lane = Lane(0, Stream.WIRE, Channel(0, 1, Direction.ACTIVATION))
    assert [action.edge for action in wire_lanes(lowered)[lane]] == [0, 1]


@pytest.mark.parametrize(
    ("lanes", "spans"),
    [
        (["0F0..1 0B0 0B1", "1F0..1 1B0 1B1"], [(0, 2)]),
        (["0F0..1 0B0 0B1", "1F0 1F1 1B0 1B1"], [(0, 1), (1, 1)]),
        (["0F0 0F1 0B0 0B1", "1F0..1 1B0 1B1"], [(0, 1), (1, 1)]),
    ],
)
def test_a_message_covers_what_both_ends_have_in_common(
    lanes: list[str], spans: list[tuple[int, int]]
) -> None:
    lowered = wires(programs.program("spans", lanes, 2))
    sends = [a for a in lowered.actions if a.kind is Kind.SEND_ACTIVATION]
    assert [(a.microbatch, a.span) for a in sends] == spans


def test_wires_belong_to_the_pipe_of_their_microbatch() -> None:
    lowered = wires(programs.chimera())
    sends = [a for a in lowered.actions if a.kind is Kind.SEND_ACTIVATION]
    assert [(a.microbatch, a.pipe) for a in sends] == [(0, 0), (1, 1)]


def test_wires_are_added_once() -> None:
    with pytest.raises(InputError, match="has wires already"):
        wires(wires(programs.gpipe(2, 1)))


@pytest.mark.parametrize("name", programs.VALID)
def test_without_its_wires_a_program_is_what_it_was(name: str) -> None:
    program = programs.VALID[name]
    assert unwired(wires(program)) == program


def test_a_periodic_program_repeats_its_wires() -> None:
    lowered = wires(programs.periodic_two_bw())
    assert lowered.unrolled(5) == wires(programs.two_bw(7))
    assert unwired(lowered) == programs.periodic_two_bw()


@settings(deadline=None, max_examples=50)
@given(
    program=st.sampled_from(list(programs.VALID.values())),
    latency=st.floats(0, 3, allow_nan=False),
)
def test_where_only_latency_counts_wires_take_no_time(program: Program, latency: float) -> None:
    cost = Share(latency=latency).cost(program)
    plain, wired = simulate(program, cost), simulate(wires(program), cost)
    assert wired.makespan == pytest.approx(plain.makespan)


def test_the_channels_of_very_many_devices_are_distinct() -> None:
    """Their numbers, those of actions and those of edges do not fit into one number together."""
    devices = 50_000
    lanes = [[Action(stage, Kind.F, 0), Action(stage, Kind.B, 0)] for stage in range(devices)]
    found = messages(Program.build("wide", Placement.straight(devices), lanes, microbatches=1))
    assert len(found.channels) == len(found) == 2 * (devices - 1)
