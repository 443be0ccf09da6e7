"""One order of transfers: the rule against a machine by brute force, and in words."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest

from tests.lower import rendezvous
from tests.lower.test_executable import valid
from tests.test_registry import each_schedule
from tests.verify import programs
from weft.ir.kinds import Direction, Stream
from weft.ir.lanes import Channel, Lane
from weft.ir.program import Content, Program
from weft.lower import executable, one_wire, unwired, wires
from weft.notation import from_text, to_text
from weft.schedules import REGISTRY, Schedule, Shape
from weft.verify import verify


def on_wires(program: Program, *orders: str) -> Program:
    """The program with these transfers on the wire of each device."""
    text = to_text(unwired(program)).splitlines()
    text += [f"device {device} wire: {order}" for device, order in enumerate(orders)]
    return from_text("\n".join(text))


def small(schedule: Schedule) -> Program | None:
    least, most = schedule.stages_per_device
    shape = Shape(devices=3, microbatches=6, stages_per_device=least if most else 2, updates=3)
    plain = valid(schedule, shape)
    if plain is None:
        return None
    return one_wire(executable(plain).unrolled() if plain.period else executable(plain))


def reordered(program: Program, wire: Lane, order: list[int]) -> Program:
    return program.with_lanes({**program.contents(), wire: program.contents()[wire].take(order)})


def swaps(program: Program) -> Iterator[Program]:
    """Each two neighbours on each wire, changed over."""
    for index, lane in enumerate(program.lanes):
        if lane.is_one_wire:
            length = len(program.lane(index))
            for place in range(length - 1):
                order = [*range(length)]
                order[place : place + 2] = [place + 1, place]
                yield reordered(program, lane, order)


@each_schedule
def test_on_wires_in_any_order_the_rule_and_the_machine_agree(schedule: Schedule) -> None:
    program = small(schedule)
    if program is None:
        return
    source = np.random.default_rng(5)
    verdicts = []
    for _ in range(25):
        changed = program
        for lane in [lane for lane in program.lanes if lane.is_one_wire]:
            length = len(program.contents()[lane])
            moves = source.normal(scale=source.choice([0.3, 0.8, 3.0]), size=length)
            changed = reordered(changed, lane, np.argsort(np.arange(length) + moves).tolist())
        report = verify(changed)
        assert report.is_valid == rendezvous.ends(changed)
        assert {finding.rule for finding in report.findings} <= {"one order"}
        verdicts.append(report.is_valid)
    assert False in verdicts


@each_schedule
def test_two_transfers_changed_over_on_one_device_are_found(schedule: Schedule) -> None:
    """Where both ends list them, in two orders; where only one does, if the machine is stuck."""
    program = small(schedule)
    if program is None:
        return
    found = 0
    for changed in islice(swaps(program), 0, None, 2 if program.period is None else 8):
        is_valid = verify(changed).is_valid
        assert is_valid == rendezvous.ends(changed)
        found += not is_valid
    assert found


def test_messages_between_two_devices_keep_their_order() -> None:
    """No name travels with a transfer: what is sent first is what is received first."""
    program = one_wire(executable(programs.gpipe(2, 3)))
    for changed in swaps(program):
        assert not verify(changed).is_valid


TWO = programs.program("two", ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"], 2)


def test_a_circle_in_words() -> None:
    program = on_wires(
        TWO,
        "send:0-1F0 send:0-1F1 recv:0-1B0 recv:0-1B1",
        "recv:0-1F0 send:0-1B0 recv:0-1F1 send:0-1B1",
    )
    (finding,) = verify(program).findings
    assert finding.rule == "one order"
    assert finding.message == (
        "two on 2 devices: deadlock of transfers: device 0 waits at send:0-1F1 for recv:0-1F1 of"
        " device 1, device 1 waits at send:0-1B0 for recv:0-1B0 of device 0. On device 0, move"
        " recv:0-1B0 in front of send:0-1F1."
    )


def test_a_send_in_front_of_what_its_value_needs() -> None:
    program = on_wires(
        TWO,
        "send:0-1F0 recv:0-1B0 send:0-1F1 recv:0-1B1",
        "send:0-1B0 recv:0-1F0 recv:0-1F1 send:0-1B1",
    )
    (finding,) = verify(program).findings
    assert finding.rule == "one order"
    assert finding.message.endswith("On device 1, move recv:0-1F0 in front of send:0-1B0.")


def test_a_group_that_waits_for_itself() -> None:
    program = on_wires(
        TWO,
        "send:0-1F0 recv:0-1B0 send:0-1F1 recv:0-1B1",
        "recv:0-1F0 send:0-1B0 recv:0-1F1 send:0-1B1",
    )
    assert verify(program).is_valid
    (finding,) = verify(program, groups={0: (1, 1, 1, 1), 1: (2, 1, 1)}).findings
    assert finding.rule == "one order"
    assert "post recv:0-1F0 and send:0-1B0 one after the other" in finding.message


def test_of_channels_the_rule_says_nothing() -> None:
    """Channels hold what is sent, in whatever order devices come to it."""
    assert verify(wires(TWO)).is_valid
    assert not verify(on_wires(TWO, "recv:0-1B0 send:0-1F0 send:0-1F1 recv:0-1B1",
                               "recv:0-1F0 send:0-1B0 recv:0-1F1 send:0-1B1")).is_valid  # fmt: skip


def test_one_end_on_a_wire_and_the_other_on_a_channel() -> None:
    program = wires(programs.gpipe(2, 1))
    channel = Channel(0, 1, Direction.ACTIVATION)
    contents = program.contents()
    contents[Lane(1, Stream.WIRE)] = contents.pop(Lane(1, Stream.WIRE, channel))
    (finding,) = verify(program.with_lanes(contents)).findings
    assert finding.rule == "wires"
    assert finding.message.endswith("List both on channels, or on wires.")


@pytest.mark.parametrize("lane", [Lane(0), Lane(0, Stream.REDUCE)])
def test_a_transfer_belongs_on_a_wire(lane: Lane) -> None:
    program = one_wire(programs.gpipe(2, 1))
    contents: dict[Lane, Content] = dict(program.contents())
    wire = program.contents()[Lane(0, Stream.WIRE)]
    contents |= {
        Lane(0, Stream.WIRE): wire[1:],
        lane: [*program.contents().get(lane, ()), *wire[:1]],
    }
    assert "well-formed" in {f.rule for f in verify(program.with_lanes(contents)).findings}


# Ordered by when values are there and nothing else, device 1 receives 0F1, of the next step, before
# it sends 1F0, which the call of the first step needs.
AHEAD = {
    0: "send:0-1F0 send:0-1F1 [ send:0-1F2 recv:0-1B0 ] send:0-1F3 recv:0-1B1 send:0-1F4"
    " recv:0-1B2 recv:0-1B3 recv:0-1B4",
    1: "recv:0-1F0 recv:0-1F1 send:1-2F0 recv:0-1F2 send:1-2F1 recv:1-2B0 [ send:0-1B0 send:1-2F2"
    " recv:1-2B1 recv:0-1F3 ] send:0-1B1 send:1-2F3 recv:1-2B2 recv:0-1F4 send:0-1B2 send:1-2F4"
    " recv:1-2B3 send:0-1B3 recv:1-2B4 send:0-1B4",
    2: "recv:1-2F0 recv:1-2F1 send:1-2B0 [ recv:1-2F2 send:1-2B1 ] recv:1-2F3 send:1-2B2"
    " recv:1-2F4 send:1-2B3 send:1-2B4",
}


def test_a_step_needs_no_transfer_after_those_of_the_next() -> None:
    pipedream = REGISTRY["pipedream"].program(Shape(devices=3, microbatches=1, updates=6))
    program = on_wires(executable(pipedream), *AHEAD.values())
    assert rendezvous.ends(program.unrolled(3))  # fed with all of its data at once, it runs
    findings = verify(program).findings
    assert {finding.rule for finding in findings} == {"in step"}
    assert findings[1].message == (
        "pipedream on 3 devices: device 2 waits at 2F0@0 for recv:1-2F0, and transfers wait before"
        " it for recv:0-1F1 of device 1, which needs the data of step 1. Move recv:1-2F0 and its"
        " send in front."
    )
    assert verify(one_wire(executable(pipedream))).is_valid
