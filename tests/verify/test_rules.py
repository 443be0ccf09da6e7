"""Each rule, broken by a program that breaks no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.verify import programs
from weft.cost import Cost, Share
from weft.errors import InputError, ProgramError
from weft.ir.actions import Action, Actions, Pair
from weft.ir.graph import Backward, Graph, Stage
from weft.ir.kinds import Direction, Kind, Stream
from weft.ir.lanes import Channel, Lane
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.lower import executable, one_wire, replicated, unwired, updates, wires
from weft.notation import from_text
from weft.schedules import REGISTRY, Shape
from weft.verify import RULES, check, verify


def without(program: Program, **fields: object) -> Program:
    """The program less the first action with these fields."""
    row = next(
        index
        for index, action in enumerate(program.actions)
        if all(getattr(action, name) == value for name, value in fields.items())
    )
    kept = np.delete(np.arange(len(program)), row)
    return program.with_lanes(
        {
            lane: program.actions.take(kept[program.lane_of[kept] == index])
            for index, lane in enumerate(program.lanes)
        }
    )


def with_lane(program: Program, lane: Lane, words: str) -> Program:
    return program.with_lanes({**program.contents(), lane: programs.actions(words)})


def with_extra(program: Program, lane: Lane, words: str) -> Program:
    contents = program.contents()
    extra = programs.actions(words)
    return program.with_lanes({**contents, lane: [*contents[lane].slots(), *extra]})


def reordered(program: Program, lane: Lane, *order: int) -> Program:
    contents = program.contents()
    return program.with_lanes({**contents, lane: contents[lane].take(list(order))})


def elsewhere(program: Program, segment: int) -> Program:
    """The program with its first copies there and back of another segment."""
    contents, copies = program.contents(), (Lane(0, Stream.OFFLOAD), Lane(0, Stream.ONLOAD))
    changed = {
        lane: contents[lane].replace(
            segment=np.where(contents[lane].segment == 2, segment, contents[lane].segment)
        )
        for lane in copies
    }
    return program.with_lanes({**contents, **changed})


def with_whole_copies(program: Program) -> Program:
    """The program with its whole first stage moved, besides its segments."""
    contents = program.contents()
    for stream, kind in ((Stream.OFFLOAD, Kind.OFFLOAD), (Stream.ONLOAD, Kind.ONLOAD)):
        lane = Lane(0, stream)
        whole = Actions.collect([Action(0, kind, 0)])
        contents[lane] = Actions.concatenate([contents[lane], whole])
    return program.with_lanes(contents)


def capped(program: Program, capacity: float) -> Cost:
    cost = Share().cost(program)
    return replace(cost, memory=replace(cost.memory, capacity=capacity))


FORWARDS = Channel(0, 1, Direction.ACTIVATION)
WIRED = wires(programs.gpipe(2, 2))
CHAIN = programs.one_f_one_b(4, 4)
TIED = executable(programs.one_f_one_b(3, 2), ties=((0, 2),))
SHARDED = executable(programs.chimera(), is_sharded=True)
SUMS = Lane(0, Stream.REDUCE)
LONG = Shape(devices=2, microbatches=1, updates=8)
WIDE = Shape(devices=2, microbatches=4, stages_per_device=2, updates=6)

# Device 1 waits for stage 0's gradient, and device 0 for what device 1 computes after that.
EARLY_NORM = """\
weft program 1
microbatches 1
graph chain 3
place 0 1 1
norm 0 2
device 0: 0F0 0B0 0U@0
device 1: 1F0 2F0 2B0 2U@0 1B0 1U@0
"""
EARLY_TIE = """\
weft program 1
microbatches 1
graph chain 3
place 0 1 1
tie 0 2
device 0: 0F0 0B0 0U@0 0U@0~0
device 1: 1F0 2F0 2B0 2U@0 2U@0~0 1B0 1U@0
device 0 reduce: reduce:0@0~0
device 1 reduce: reduce:2@0~0
"""


def with_action(program: Program, lane: Lane, action: Action) -> Program:
    contents = program.contents()
    return program.with_lanes({**contents, lane: [*contents[lane], action]})


BROKEN: dict[str, list[Callable[[], Program]]] = {
    "well-formed": [
        lambda: with_extra(CHAIN, Lane(3), "9F0"),
        lambda: with_extra(programs.gpipe(1, 2), Lane(0), "0B7"),
        lambda: with_extra(programs.gpipe(1, 1), Lane(0), "0F2147483647"),
        lambda: with_extra(programs.gpipe(1, 1), Lane(0), "0F1000000000 0B1000000000"),
        lambda: with_extra(programs.chimera(), Lane(0), "0F0..1"),
        lambda: with_lane(programs.gpipe(1, 2), Lane(0, Stream.OFFLOAD), "0F0"),
        lambda: with_extra(WIRED, Lane(0, Stream.WIRE, FORWARDS), "0F0"),
        lambda: with_action(TIED, Lane(0), Action(0, Kind.UPDATE, version=1, edge=1)),
        lambda: with_action(TIED, SUMS, Action(1, Kind.REDUCE, version=0, edge=0)),
    ],
    "complete": [
        lambda: programs.program("twice", ["0F0 0F0 0B0"], 1),
        lambda: programs.program("both", ["0F0 0B0 0I0"], 1),
        lambda: programs.program("more", ["0F0 0B0 0W0"], 1),
        lambda: programs.program("again", ["0F0 0R0 0R0 0B0"], 1),
        lambda: programs.program("one of two", ["0F0 0B0"], 2),
        lambda: programs.two_tower(1, backward=Backward.NONE).with_lanes(
            {
                **programs.two_tower(1).contents(),
                Lane(0): programs.actions("0F0 0B0"),
            }
        ),
        lambda: frozen("0F0 0I0 0W0", Backward.INPUT),
        lambda: with_lane(programs.contrastive("F0 F1 B0 B1"), Lane(2), "2F0 2F1 2B0..1"),
    ],
    "placed": [
        lambda: programs.program("astray", ["0F0 1F0 1B0 0B0", ""], 1),
        lambda: on_wrong_channel(),
    ],
    "produced": [
        lambda: without(CHAIN, stage=3, kind=Kind.B, microbatch=0),
        lambda: without(CHAIN, stage=0, kind=Kind.F, microbatch=2),
        lambda: without(WIRED, stage=0, kind=Kind.F, microbatch=1),
        lambda: programs.program("no I", ["0F0 0W0"], 1),
    ],
    "drained": [
        lambda: without(CHAIN, stage=0, kind=Kind.B, microbatch=0),
        lambda: without(programs.zb_h1(2, 2), stage=1, kind=Kind.W, microbatch=1),
        lambda: without(WIRED, kind=Kind.RECV_ACTIVATION, microbatch=0),
    ],
    "wires": [
        lambda: without(WIRED, kind=Kind.SEND_GRADIENT, microbatch=1),
        lambda: reordered(WIRED, Lane(0, Stream.WIRE, FORWARDS), 1, 0),
        lambda: reordered(WIRED, Lane(1, Stream.WIRE, FORWARDS), 1, 0),
        lambda: reordered(WIRED, Lane(1, Stream.WIRE, FORWARDS), 0, 1, 1),
        lambda: with_local_wire(),
    ],
    "offload": [
        lambda: without(programs.offloading(), kind=Kind.ONLOAD),
        lambda: without(programs.offloading(), kind=Kind.OFFLOAD),
        lambda: reordered(programs.offloading(), Lane(0, Stream.OFFLOAD), 0, 0),
        lambda: without(programs.offloading_in_pieces(), kind=Kind.ONLOAD, segment=2),
        lambda: without(programs.offloading_in_pieces(), kind=Kind.OFFLOAD, segment=6),
        lambda: elsewhere(programs.offloading_in_pieces(), segment=10),
        lambda: with_whole_copies(programs.offloading_in_pieces()),
    ],
    "versions": [
        lambda: without(programs.two_bw(3), kind=Kind.UPDATE, version=2),
        lambda: without(updates(programs.chimera()), kind=Kind.REDUCE),
        lambda: without(updates(programs.chimera()), kind=Kind.UPDATE),
        lambda: reordered(updates(programs.gpipe(2, 1)), Lane(1), 0, 2, 1),
        lambda: without(executable(programs.chimera(), is_updating=False), kind=Kind.REDUCE),
        lambda: without(TIED, kind=Kind.REDUCE),
        lambda: without(SHARDED, kind=Kind.GATHER, stage=0, pipe=1),
        lambda: with_action(SHARDED, SUMS, Action(0, Kind.GATHER, version=0)),
        lambda: without(TIED, kind=Kind.UPDATE, edge=0),
        lambda: without(executable(programs.chimera(), ties=((0, 1),)), kind=Kind.REDUCE, edge=0),
        lambda: reordered(executable(programs.chimera(), ties=((0, 1),)), SUMS, 2, 1, 0, 3),
        lambda: unwired(executable(REGISTRY["wpipe"].program(WIDE), norms=((0, 1, 2, 3),))),
        lambda: two_bw_with(Kind.B, 1, is_stashing=True),
        lambda: two_bw_with(Kind.F, 2, is_stashing=True),
        lambda: programs.REPEATING["the gradient of a step that joins the update before"],
        lambda: programs.REPEATING["a backward with older weights, and no stash"],
        lambda: programs.REPEATING["a forward with older weights, and no stash"],
        lambda: programs.REPEATING["an update between recomputation and backward, and no stash"],
    ],
    "periodic": [
        lambda: programs.REPEATING["an end in another order than the body"],
        lambda: programs.REPEATING["an end with other versions than the body"],
        lambda: programs.REPEATING["a body that runs nothing"],
    ],
    "in step": [
        lambda: programs.REPEATING["the data of the next step first"],
        lambda: programs.REPEATING["a gradient that waits for the next step"],
        lambda: replace(programs.periodic_two_bw(), norms=((0, 1),)),
        lambda: executable(REGISTRY["pipedream"].program(LONG), norms=((0, 1),)),
    ],
    "ordered": [
        lambda: programs.program("B first", ["0B0 0F0"], 1),
        lambda: programs.program("W first", ["0F0 0W0 0I0"], 1),
        lambda: programs.program("R last", ["0F0 0B0 0R0"], 1),
        lambda: programs.program("self", [[Pair(Action(0, Kind.F, 0), Action(0, Kind.B, 0))]], 1),
    ],
    "deadlock": [
        lambda: programs.program("ring", ["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"], 2),
        lambda: programs.contrastive("F0 B0 F1 B1"),
        lambda: wires(programs.contrastive("F0 B0 F1 B1")),
        lambda: programs.paired_one_f_one_b(),
        lambda: from_text(EARLY_NORM),
        lambda: from_text(EARLY_TIE),
    ],
    "exchanges": [
        lambda: reordered(replicated(programs.gpipe(1, 2), 2, expert_ranks=2), Lane(1), 1, 0, 2, 3),
    ],
    "one order": [
        lambda: reordered(one_wire(programs.gpipe(2, 2)), Lane(0, Stream.WIRE), 1, 0, 2, 3),
        lambda: reordered(one_wire(programs.gpipe(2, 1)), Lane(1, Stream.WIRE), 1, 0),
        lambda: reordered(one_wire(TIED), Lane(0, Stream.WIRE), 0, 2, 3, 1),
    ],
}


def frozen(words: str, backward: Backward) -> Program:
    graph = Graph((Stage(backward=backward),), ())
    return programs.program("frozen", [words], 1, graph=graph)


def on_wrong_channel() -> Program:
    """Three devices in a ring; a send of device 0 for device 1 stands on the way to device 2."""
    program = wires(programs.interleaved(3, 3, 2))
    right = Lane(0, Stream.WIRE, Channel(0, 1, Direction.ACTIVATION))
    wrong = Lane(0, Stream.WIRE, Channel(0, 2, Direction.ACTIVATION))
    contents = program.contents()
    return program.with_lanes({**contents, right: [], wrong: contents[right]})


def with_local_wire() -> Program:
    """Both stages on device 0, and a send and a receive between them."""
    channel = Channel(0, 0, Direction.ACTIVATION)
    lane = Lane(0, Stream.WIRE, channel)
    return Program.build(
        "local",
        Placement(((0, 0),)),
        {
            Lane(0): programs.actions("0F0 1F0 1B0 0B0"),
            lane: [
                Action(0, Kind.SEND_ACTIVATION, 0, edge=0),
                Action(1, Kind.RECV_ACTIVATION, 0, edge=0),
            ],
        },
        microbatches=1,
    )


def two_bw_with(kind: Kind, version: int, *, is_stashing: bool) -> Program:
    """2BW in which one action of microbatch 2, of version 0, names another version."""
    program = programs.two_bw(2)
    lane = [
        action._replace(version=version) if action[1:3] == (kind, 2) else action
        for action in program.lane(1)
    ]
    return program.with_lanes({**program.contents(), Lane(1): lane}, is_stashing=is_stashing)


@pytest.mark.parametrize(
    ("rule", "make"),
    [(rule, make) for rule, programs_of in BROKEN.items() for make in programs_of],
)
def test_a_breach_is_reported_by_its_own_rule_alone(rule: str, make: Callable[[], Program]) -> None:
    report = verify(make())
    assert {finding.rule for finding in report.findings} == {rule}
    assert report.channel_depth is None


def test_every_rule_is_broken_somewhere_in_these_tests() -> None:
    assert {rule.name for rule in RULES} == {*BROKEN, "channel depth", "memory"}


def test_too_shallow_channels_are_refused() -> None:
    report = verify(CHAIN, channel_depth=0)
    assert {finding.rule for finding in report.findings} == {"channel depth"}
    assert report.channel_depth == 1
    assert verify(CHAIN, channel_depth=1).is_valid


def test_too_little_memory_is_refused_where_it_is_short() -> None:
    report = verify(CHAIN, cost=capped(CHAIN, 4.0))
    assert [(f.rule, f.device, f.action) for f in report.findings] == [("memory", 0, "0F3")]
    assert verify(CHAIN, cost=capped(CHAIN, 5.0)).is_valid


def test_more_versions_than_claimed_are_refused() -> None:
    program = programs.two_bw(3)
    assert verify(program, versions=[2, 2]).is_valid
    report = verify(program, versions=[2, 1])
    assert [(f.rule, f.device) for f in report.findings] == [("versions", 1)]
    with pytest.raises(InputError, match="1 of 2 stages"):
        verify(program, versions=[2])


@pytest.mark.parametrize("name", programs.VALID)
def test_valid_programs_pass_before_and_after_lowering(name: str) -> None:
    program = programs.VALID[name]
    lowered = [program, wires(program)]
    if name != "2bw":
        lowered += [updates(program), updates(wires(program)), wires(updates(program)).unrolled(2)]
    for variant in lowered:
        assert check(variant).is_valid


def test_a_periodic_program_is_looked_at_unrolled() -> None:
    program = programs.periodic_two_bw()
    assert verify(program).is_valid
    assert verify(wires(program)).is_valid
    lanes = program.contents()
    lanes[Lane(0)] = lanes[Lane(0)].replace(version=0)
    assert not verify(program.with_lanes(lanes)).is_valid


def test_backward_may_use_newer_weights_where_nothing_is_stashed() -> None:
    newer = "0F0@0 0F1@0 0B0@0 0U@0 [0F2@1 0B1@1 0U@1] 0B2@2 0U@2"
    assert verify(programs.repeating(newer, is_stashing=False)).is_valid
    assert not verify(programs.repeating(newer)).is_valid


def test_a_forward_ahead_of_its_update_sees_other_weights_than_its_backward() -> None:
    program = updates(programs.gpipe(1, 1)).unrolled(2)
    assert verify(program).is_valid
    report = verify(reordered(program, Lane(0), 0, 3, 1, 2, 4, 5))
    assert {finding.rule for finding in report.findings} == {"versions"}


def test_an_empty_program_lacks_everything() -> None:
    assert not verify(programs.program("empty", ["", ""], 1)).is_valid


def test_segments_of_a_stage_count_once_each() -> None:
    kinds = [(Kind.F, range(4)), (Kind.B, range(3, -1, -1))]
    pieces = [Action(0, kind, 0, segment=part) for kind, parts in kinds for part in parts]
    assert verify(programs.program("cut", [pieces], 1)).is_valid
    both = [*pieces, *(action._replace(microbatch=1) for action in pieces)]
    assert verify(programs.program("cut", [both], 2)).is_valid
    for spoilt in (both[:-1], [*both, both[3]], both[:9] + both[10:]):
        assert not verify(programs.program("cut", [spoilt], 2)).is_valid


def test_kinds_and_pairs_that_cannot_be_read() -> None:
    odd = Actions.of(0, [0, 1, 17], 0)
    assert verify(programs.gpipe(1, 1).with_lanes({Lane(0): odd})).findings[0].rule == "well-formed"
    triple = Actions.of(0, [0, 1, 0], [0, 0, 1], joined=[0, 1, 1])
    assert verify(programs.gpipe(1, 1).with_lanes({Lane(0): triple})).findings[0].rule == (
        "well-formed"
    )


def test_pairs_need_one_forward_more_ahead_than_interleaving_does() -> None:
    assert not verify(programs.interleaved_pairs(extra=0)).is_valid
    assert verify(programs.interleaved_pairs(extra=1)).is_valid


def test_a_large_program_is_verified_whole() -> None:
    program = programs.interleaved(16, 256, 4)
    assert len(program) == 32_768
    assert verify(program).is_valid
    assert not verify(without(program, stage=63, kind=Kind.B, microbatch=255)).is_valid


# what a finding says


def test_a_finding_names_device_action_cause_and_remedy() -> None:
    report = verify(without(CHAIN, stage=3, kind=Kind.B, microbatch=0))
    assert report.findings[0][:3] == ("produced", 2, "2B0")
    assert str(report) == (
        "1f1b on 4 devices: device 2 waits at 2B0 for the gradient of stage 3,"
        " which device 3 never computes. Add 3B0 to device 3."
    )


@pytest.mark.parametrize("lower", [lambda program: program, wires])
def test_a_deadlock_is_reported_as_the_ring_it_is(lower: Callable[[Program], Program]) -> None:
    report = verify(lower(programs.contrastive("F0 B0 F1 B1")))
    assert str(report) == (
        "contrastive on 3 devices: deadlock: device 2 waits at 2F0..1 for 1F1 of device 1,"
        " device 1 waits at 1B0 for 2B0..1 of device 2. On device 1, move 1F1 in front of 1B0."
    )


def test_blocked_sends_are_reported() -> None:
    assert str(verify(programs.one_f_one_b(2, 2), channel_depth=0)) == (
        "1f1b on 2 devices: with channels of depth 0, device 0 waits to send 0F1, device 1 waits to"
        " send 1B0, and each keeps the next waiting. Give channels a depth of 1."
    )


def test_many_findings_are_reported_briefly_and_kept_in_full() -> None:
    program = programs.program("half", ["0F0 0B0"], 200)
    report = verify(program)
    assert len(report.findings) == 398
    assert str(report).splitlines()[3:] == [
        "half on 1 device: the rule 'complete' is broken in 395 more places."
    ]
    with pytest.raises(ProgramError) as caught:
        check(program)
    assert len(caught.value.findings) == 398
    assert len(str(caught.value).splitlines()) == 4


def test_findings_stand_in_lane_order() -> None:
    spoilt = without(without(CHAIN, stage=2, kind=Kind.F), stage=0, kind=Kind.B)
    report = verify(spoilt)
    assert [f.device for f in report.findings] == sorted(f.device for f in report.findings)


def test_a_deadlock_by_a_norm_says_what_to_move() -> None:
    (finding,) = verify(from_text(EARLY_NORM)).findings
    assert "device 1 waits at 2U@0 for 0B0 of device 0" in finding.message
    assert "On device 1, move 1B0 in front of 2U@0." in finding.message


def test_gradients_may_be_summed_for_whoever_asked_for_them() -> None:
    program = executable(programs.chimera(), is_updating=False)
    assert verify(program).is_valid
