"""Parts of stages that differ: shares stage by stage, as they are measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from weft.cost import Cost, Share
from weft.errors import InputError
from weft.ir.kinds import Layer, Part
from weft.lower import experts
from weft.notation import read_cost, to_json
from weft.runtime.profile.found import Found
from weft.runtime.profile.parts import shares_of
from weft.schedules import one_f_one_b

X, DENSE, PLAIN = Layer.EXPERTS, Layer.DENSE, Layer.PLAIN
LAYERS = [[X], [DENSE, X], [X, PLAIN]]
SECONDS = {  # of the segments of F, stage by stage
    0: {0: 3.0, 1: 1.0, 2: 2.0, 3: 2.0},
    1: {0: 2.0, 2: 4.0, 4: 2.0, 5: 1.0, 6: 4.0, 7: 1.0},
    2: {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0, 6: 3.0},
}


def cost() -> Cost:
    program = one_f_one_b(devices=3, microbatches=1)
    usual = Share().cost(program)
    shares = tuple(
        shares_of(Found({f"F {at}": [taken] for at, taken in own.items()}))["F"]
        for own in SECONDS.values()
    )
    forward = tuple(sum(own.values()) for own in SECONDS.values())
    return replace(usual, times=replace(usual.times, forward=forward), parts={"F": shares})


def test_segments_take_what_was_measured_of_them() -> None:
    program = experts(one_f_one_b(devices=3, microbatches=1), layers=LAYERS)
    durations, actions = cost().durations(program), program.actions
    for stage, own in SECONDS.items():
        for segment, taken in own.items():
            rows = (actions.stage == stage) & (actions.segment == segment) & (actions.kind == 0)
            assert durations[program.slot_of[np.flatnonzero(rows)]] == pytest.approx(taken)


def test_they_are_read_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    path.write_text(to_json(cost()))
    assert read_cost(path).parts == cost().parts


def test_other_numbers_of_stages_are_refused() -> None:
    shares = ((0.25,) * len(Part),) * 2
    with pytest.raises(InputError, match="one set of them for all stages or one for each"):
        replace(cost(), parts={"F": shares})  # type: ignore[dict-item]
