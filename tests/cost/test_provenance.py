from __future__ import annotations

import pytest

from weft.cost import DEVICES, MODELS, Cost, Estimate, Provenance, Share, derive
from weft.cost.provenance import SOURCES, total
from weft.errors import InputError
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.lower import wires
from weft.schedules import REGISTRY

GIVEN, MEASURED = Provenance.GIVEN, Provenance.MEASURED
INTERPOLATED, DERIVED = Provenance.INTERPOLATED, Provenance.DERIVED


def marks(program: Program, cost: Cost, kind: Kind, stage: int) -> set[Provenance]:
    found = cost.provenance_of(program)
    chosen = (program.actions.kind == kind) & (program.actions.stage == stage)
    assert chosen.any()
    return set(found[chosen])


def test_every_kind_takes_its_seconds_from_somewhere() -> None:
    assert set(SOURCES) == set(Kind)


def test_unit_costs_are_given() -> None:
    program = REGISTRY["zb-h1"](devices=4, microbatches=8)
    found = Share().cost(program).provenance_of(program)
    assert len(found) == len(program)
    assert set(found) == {GIVEN}


def test_an_action_is_known_as_its_stage_and_kind_are() -> None:
    program = REGISTRY["zb-h1"](devices=2, microbatches=4)
    plain = Share().cost(program)
    known = {"forward": (MEASURED, INTERPOLATED), "weight_grad": (DERIVED, GIVEN)}
    cost = Cost(plain.times, plain.memory, plain.network, provenance=known)
    assert marks(program, cost, Kind.F, 0) == {MEASURED}
    assert marks(program, cost, Kind.F, 1) == {INTERPOLATED}
    assert marks(program, cost, Kind.W, 0) == {DERIVED}
    assert marks(program, cost, Kind.I, 0) == {GIVEN}


def test_a_whole_backward_is_known_as_badly_as_its_worse_half() -> None:
    program = REGISTRY["1f1b"](devices=2, microbatches=4)
    plain = Share().cost(program)
    known = {"input_grad": (MEASURED,) * 2, "weight_grad": (INTERPOLATED,) * 2}
    cost = Cost(plain.times, plain.memory, plain.network, provenance=known)
    assert marks(program, cost, Kind.B, 0) == {INTERPOLATED}


def test_derived_costs_say_which_products_were_measured() -> None:
    """On an H200 products and attention lie between sizes that were timed, on an H100 not."""
    program = wires(REGISTRY["zb-h1"](devices=8, microbatches=8))
    on_h200 = derive(program, MODELS["gpt-6.2b"], DEVICES["h200"])
    assert marks(program, on_h200, Kind.W, 3) == {INTERPOLATED}
    assert marks(program, on_h200, Kind.F, 3) == {INTERPOLATED}
    assert marks(program, on_h200, Kind.SEND_ACTIVATION, 3) == {DERIVED}
    on_h100 = derive(program, MODELS["gpt-6.2b"], DEVICES["h100"])
    assert set(on_h100.provenance_of(program)) == {DERIVED}


def test_a_cpu_that_was_measured() -> None:
    program = REGISTRY["1f1b"](devices=2, microbatches=4)
    cost = derive(program, MODELS["gpt-cpu"], DEVICES["cpu"])
    assert set(cost.provenance["weight_grad"]) <= {MEASURED, INTERPOLATED}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([(9.0, MEASURED), (1.0, DERIVED)], (10.0, DERIVED)),
        ([(9.5, MEASURED), (0.5, DERIVED)], (10.0, MEASURED)),
        ([(9.0, INTERPOLATED), (0.6, DERIVED), (0.6, DERIVED)], (10.2, DERIVED)),
        ([], (0.0, DERIVED)),
    ],
)
def test_a_tenth_of_the_seconds_decides(
    parts: list[tuple[float, Provenance]], expected: tuple[float, Provenance]
) -> None:
    found = total([Estimate(*part) for part in parts])
    assert found.seconds == pytest.approx(expected[0])
    assert found.provenance is expected[1]


def test_marks_of_what_is_not_there_are_refused() -> None:
    plain = Share().cost(REGISTRY["1f1b"](devices=2, microbatches=4))
    with pytest.raises(InputError, match="provenance of 'forwards'; a cost has forward"):
        Cost(plain.times, plain.memory, plain.network, provenance={"forwards": (GIVEN,) * 2})
    with pytest.raises(InputError, match="provenance of forward: 3 marks for 2 stages"):
        Cost(plain.times, plain.memory, plain.network, provenance={"forward": (GIVEN,) * 3})
