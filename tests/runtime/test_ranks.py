"""Real processes, one device each: bitwise what one process computes, over either transport."""

from __future__ import annotations

import pytest

from tests.runtime.exactness import differences_of
from tests.runtime.programs import newest_first
from tests.runtime.ranks import run
from weft.ir.program import Program
from weft.schedules import chimera, dualpipev, gpipe, interleaved_1f1b, one_f_one_b, zb_h1, zbv

TRANSPORTS = ("shared", "gloo")


def train(cases: list[tuple[str, Program]], transport: str) -> dict[str, list[str]]:
    """In each rank: what differs from the reference, by case; nothing where all is equal."""
    return {
        f"{index} {model} {program.name}": found
        for index, (model, program) in enumerate(cases)
        if (found := differences_of(model, program, transport=transport))
    }


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("devices", [2, 4])
def test_schedules(devices: int, transport: str) -> None:
    shape = {"devices": devices, "microbatches": 2 * devices}
    programs = [
        gpipe(**shape),
        one_f_one_b(**shape),
        interleaved_1f1b(stages_per_device=2, **shape),
        chimera(**shape),
        zbv(**shape),
        dualpipev(**shape),
        newest_first(one_f_one_b(**shape)),
    ]
    cases = [("layers", program) for program in programs]
    assert run(devices, train, cases, transport) == [{}] * devices


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_weights_that_stages_share(transport: str) -> None:
    shape = {"devices": 4, "microbatches": 8}
    programs = [one_f_one_b(**shape), chimera(**shape), zbv(**shape)]
    assert run(4, train, [("tied", program) for program in programs], transport) == [{}] * 4


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_stages_may_pass_on(transport: str) -> None:
    """Shapes that only the data tell, values that nothing reads, whole numbers beside values."""
    shape = {"devices": 2, "microbatches": 4}
    programs = [one_f_one_b(**shape), chimera(**shape), zb_h1(**shape), zbv(**shape)]
    models = ("ragged", "forked", "reminded")
    cases = [(model, program) for model in models for program in programs]
    assert run(2, train, cases, transport) == [{}] * 2
