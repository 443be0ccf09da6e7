"""Real processes over gloo, one device each: bitwise what one process computes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.runtime.ranks import fail_on_one, train_everywhere
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


def test_when_one_rank_fails_all_say_why(tmp_path: Path) -> None:
    said = fail_on_one(one_f_one_b(devices=3, microbatches=6), tmp_path)
    assert said[2] == "device 2 failed at 2F2: out of luck"
    for device, words in enumerate(said[:2]):
        waited = rf"; device {device} was waiting for \d[FB]\d of device \d"
        assert re.fullmatch(re.escape(said[2]) + waited, words)
