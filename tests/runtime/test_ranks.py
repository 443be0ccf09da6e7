"""Real processes, one device each: bitwise what one process computes, over either transport."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.exactness import differences, differences_of
from tests.runtime.models import WIDTH, batches
from tests.runtime.programs import newest_first
from tests.runtime.ranks import over_transports, run
from weft.ir.program import Program
from weft.runtime import Pipeline
from weft.schedules import REGISTRY, Shape, chimera, one_f_one_b, zb_h1, zbv


def train(cases: list[tuple[str, Program]], transport: str) -> dict[str, list[str]]:
    """In each rank: what differs from the reference, by case; nothing where all is equal."""
    return {
        f"{index} {model} {program.name}": found
        for index, (model, program) in enumerate(cases)
        if (found := differences_of(model, program, transport=transport))
    }


def every_program(devices: int) -> Iterator[Program]:
    """Of every synchronous schedule, and a user's own order."""
    shape = Shape(devices=devices, microbatches=2 * devices)
    for schedule in REGISTRY:
        if not schedule.is_asynchronous:
            least, most = schedule.stages_per_device
            yield schedule.program(shape.but(stages_per_device=least if most else 2))
    yield newest_first(one_f_one_b(devices=devices, microbatches=2 * devices))


@pytest.mark.parametrize(("devices", "transport"), [(2, "gloo"), (4, "shared")])
def test_every_schedule(devices: int, transport: str) -> None:
    """Two devices, where neighbours are on both sides the same, and four."""
    cases = [("layers", program) for program in every_program(devices)]
    assert len(cases) > 15
    assert run(devices, train, cases, transport) == [{}] * devices


def test_weights_that_stages_share() -> None:
    shape = {"devices": 4, "microbatches": 8}
    programs = [one_f_one_b(**shape), chimera(**shape), zbv(**shape)]
    cases = [("tied", program) for program in programs]
    assert over_transports(4, train, cases) == [[{}] * 4] * 2


def test_what_stages_may_pass_on() -> None:
    """Shapes that only the data show, values that nothing reads, whole numbers beside values."""
    shape = {"devices": 2, "microbatches": 4}
    programs = [one_f_one_b(**shape), chimera(**shape), zb_h1(**shape), zbv(**shape)]
    models = ("ragged", "forked", "reminded")
    cases = [(model, program) for model in models for program in programs]
    assert over_transports(2, train, cases) == [[{}] * 2] * 2


class Conjugate(nn.Module):
    """Returns a value that is another one than its memory has, until somebody reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        imaginary = value.imag if value.is_complex() else value
        return torch.complex(self.line(value.real), imaginary).conj()


def distance(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).abs().square().mean()


def conjugated(transport: Any) -> list[str]:
    """In each rank: what differs in training, and in outputs that all ranks get."""
    torch.manual_seed(0)
    stages, program = [Conjugate(), Conjugate()], one_f_one_b(devices=2, microbatches=4)
    data = batches(11, 2)
    found = differences(copy.deepcopy(stages), program, data, loss=distance, transport=transport)
    wanted = nn.Sequential(*copy.deepcopy(stages))(data[0][0])
    pipeline = Pipeline(stages, program, loss=distance, transport=transport)
    outputs = pipeline.predict(data[0][0], everywhere=True)
    return found if torch.allclose(outputs, wanted) else [*found, "outputs"]


def test_what_passes_is_the_value_not_its_memory() -> None:
    assert over_transports(2, conjugated) == [[[]] * 2] * 2
