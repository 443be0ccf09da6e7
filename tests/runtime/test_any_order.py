"""Any valid program is exact, not only those of the registry."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.exactness import differences_of
from weft.ir.actions import Action
from weft.ir.kinds import Kind
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.verify import verify


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Stages anywhere, each with its backward whole or split, in any order that can run."""
    stages, microbatches = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    devices = draw(st.integers(1, stages))
    others = draw(st.lists(st.integers(0, devices - 1), min_size=stages, max_size=stages))
    place = draw(st.permutations([*range(devices), *others[devices:]]))
    is_split = draw(st.lists(st.booleans(), min_size=stages, max_size=stages))
    ready = [Action(0, Kind.F, microbatch) for microbatch in range(microbatches)]
    lanes: list[list[Action]] = [[] for _ in range(devices)]
    while ready:
        action = ready.pop(draw(st.integers(0, len(ready) - 1)))
        lanes[place[action.stage]].append(action)
        ready += _enabled(action, stages, is_split)
    return Program.build("any", Placement((tuple(place),)), lanes, microbatches=microbatches)


def _enabled(action: Action, stages: int, is_split: list[bool]) -> list[Action]:
    """What may run once an action has, in a chain."""
    stage, kind, microbatch = action[:3]
    if kind is Kind.F and stage < stages - 1:
        return [Action(stage + 1, Kind.F, microbatch)]
    if kind is Kind.W:
        return []
    before = stage if kind is Kind.F else stage - 1
    found = [Action(stage, Kind.W, microbatch)] if kind is Kind.I else []
    if before >= 0:
        found.append(Action(before, Kind.I if is_split[before] else Kind.B, microbatch))
    return found


@settings(max_examples=40)
@given(programs())
def test_any_order_that_can_run_is_exact(program: Program) -> None:
    assert verify(program).findings == ()
    assert differences_of("layers", program) == []
    assert differences_of("tied", program) == []
