"""Real processes over gloo, one device each: bitwise what one process computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.ranks import train_everywhere
from weft.ir.program import Program
from weft.schedules import chimera, dualpipev, gpipe, interleaved_1f1b, one_f_one_b, zbv


def newest_first(devices: int) -> Program:
    """A user's own order: 1F1B with the microbatches reversed."""
    program = one_f_one_b(devices=devices, microbatches=2 * devices)
    last = program.microbatches - 1
    return program.with_lanes(
        {
            lane: actions.replace(microbatch=last - actions.microbatch)
            for lane, actions in program.contents().items()
        }
    )


@pytest.mark.parametrize("devices", [2, 4])
def test_ranks_agree_with_the_reference(devices: int, tmp_path: Path) -> None:
    shape = {"devices": devices, "microbatches": 2 * devices}
    programs = [
        gpipe(**shape),
        one_f_one_b(**shape),
        interleaved_1f1b(stages_per_device=2, **shape),
        chimera(**shape),
        zbv(**shape),
        dualpipev(**shape),
        newest_first(devices),
    ]
    found = train_everywhere(programs, tmp_path)
    assert found == dict.fromkeys(found, True)
    assert len(found) == len(programs)
