"""Actions: packed columns and single views say the same."""

from __future__ import annotations

from typing import Any

import pytest

from weft.errors import InputError
from weft.ir.actions import Action, Actions, Pair
from weft.ir.kinds import Kind, Part, segment


def test_collect_and_slots_are_inverse() -> None:
    items: list[Action | Pair] = [
        Action(0, Kind.F, 0),
        Pair(Action(0, Kind.F, 1, version=2), Action(3, Kind.B, 0)),
        Action(1, Kind.UPDATE, version=0, pipe=1),
        Action(2, Kind.SEND_ACTIVATION, 4, edge=1),
        Action(2, Kind.F, 4, span=2, segment=segment(1, Part.EXPERTS)),
    ]
    assert list(Actions.collect(items).slots()) == items


@pytest.mark.parametrize("item", [(0, Kind.F, 0), Action(0, "F", 0), "0F0"])  # type: ignore[arg-type]
def test_what_is_no_action_is_refused(item: Any) -> None:
    with pytest.raises(InputError, match="is not an action; one reads Action"):
        Actions.collect([item])


def test_no_actions_are_actions_too() -> None:
    assert len(Actions.collect([])) == 0
    assert list(Actions.concatenate([]).slots()) == []


def test_of_broadcasts_scalars() -> None:
    actions = Actions.of(3, Kind.W, range(4), version=1)
    assert list(actions) == [Action(3, Kind.W, m, version=1) for m in range(4)]


def test_replace_changes_one_column_only() -> None:
    forward = Actions.of(0, Kind.F, range(2))
    assert list(forward.replace(kind=Kind.B)) == [Action(0, Kind.B, 0), Action(0, Kind.B, 1)]
    assert list(forward) == [Action(0, Kind.F, 0), Action(0, Kind.F, 1)]


def test_slices_are_actions() -> None:
    actions = Actions.of(0, Kind.F, range(5))
    assert [action.microbatch for action in actions[1:3]] == [1, 2]
