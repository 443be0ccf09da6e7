"""Ranks read only what they need: inputs where the first stage is, targets where the last is."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.models import WIDTH, adam, batches, linear, squared
from tests.runtime.ranks import over_transports, run
from weft.errors import Disagreement, InputError, RankError
from weft.ir.program import Program
from weft.runtime import Pipeline, Reference
from weft.runtime.stage.values import Value
from weft.schedules import chimera, gpipe, one_f_one_b, pipedream, pipedream_2bw, wpipe


class Named(nn.Module):
    """Reads a dict with a number in it, as batches have."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(WIDTH, WIDTH)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        out: Tensor = self.line(batch["rows"]) * batch["factor"]
        return out


def named(rows: Tensor) -> dict[str, Any]:
    return {"rows": rows, "factor": 2}


def stages_of(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [Named(), *linear(count - 1)]


def only(pipeline: Pipeline, batch: Any, target: Any) -> tuple[Any, Any]:
    """What this rank reads; touching the rest would fail."""
    return (
        batch if pipeline.reads_inputs else None,
        target if pipeline.reads_targets else None,
    )


def found_in(program: Program, transport: Any) -> tuple[bool, bool, list[str]]:
    """In each rank: what it reads, and what differs from the reference, which reads everything.

    Batches grow and shrink, so that what was known of shapes does not hold.
    """
    stages, settings = stages_of(program.stages), dict[str, Any](loss=squared, optimizer=adam)
    copies = copy.deepcopy(stages)
    reference = Reference(copies, program, **settings)
    data = [(named(batch), target) for size in SIZES for batch, target in batches(size, 1)]
    with Pipeline(stages, program, transport=transport, **settings) as pipeline:
        different = [
            f"the loss of step {step}"
            for step, pair in enumerate(data)
            if not torch.equal(pipeline.step(*only(pipeline, *pair)).loss, reference.step(*pair))
        ]
        different += read_apart(pipeline, copies, data)
        return pipeline.reads_inputs, pipeline.reads_targets, different


def read_apart(pipeline: Pipeline, copies: list[nn.Module], data: list[Any]) -> list[str]:
    """What differs from plain torch in evaluations and predictions."""
    data = [*data, (named(torch.ones(3, WIDTH)), torch.ones(3, WIDTH))]  # fewer than microbatches
    outputs = [nn.Sequential(*copies)(batch) for batch, _ in data]
    target = torch.cat([target for _, target in data])
    figures = pipeline.evaluate(
        [only(pipeline, *pair) for pair in data], metrics={"mean": lambda output, _: output.mean()}
    )
    wanted = squared(torch.cat(outputs), target).item(), torch.cat(outputs).mean().item()
    predicted = pipeline.predict(only(pipeline, *data[2])[0], everywhere=True)
    here = pipeline.predict(only(pipeline, *data[0])[0])
    checks = {
        "the evaluation": (figures.loss, figures.metrics["mean"]) == pytest.approx(wanted),
        "its samples": figures.samples == len(target),
        "the prediction": torch.allclose(predicted, outputs[2], atol=1e-6),
        "who has one": (here is not None) == pipeline.reads_targets,
    }
    return [name for name, is_right in checks.items() if not is_right]


SIZES = (8, 8, 12, 7, 8)


def test_ranks_of_a_line_read_what_they_need() -> None:
    program = one_f_one_b(devices=3, microbatches=4)
    for found in over_transports(3, found_in, program):
        assert found == [(True, False, []), (False, False, []), (False, True, [])]


def test_both_ends_of_two_pipes_read_both_and_outputs_are_gathered() -> None:
    for found in over_transports(2, found_in, chimera(devices=2, microbatches=4)):
        assert found == [(True, True, [])] * 2


def test_an_asynchronous_program_reads_the_same() -> None:
    program = pipedream_2bw(devices=2, microbatches=4, updates=6)
    assert run(2, found_in, program, "gloo") == [(True, False, []), (False, True, [])]


# refusals


def refused(case: Callable[[Pipeline], object]) -> str:
    """What is said on this rank where data is not given as it should be."""
    pipeline = Pipeline(linear(2), gpipe(devices=2, microbatches=2), loss=squared)
    try:
        case(pipeline)
    except (Disagreement, InputError, RankError) as error:
        return str(error)
    return "nothing"


((BATCH, TARGET),) = batches(4, 1)


def lacking(pipeline: Pipeline) -> None:
    pipeline.step(None, TARGET)


def changing(pipeline: Pipeline) -> None:
    """The last rank is given a batch in the first step alone."""
    pipeline.step(BATCH, TARGET)
    pipeline.step(BATCH if pipeline.reads_inputs else None, TARGET)


def differing(pipeline: Pipeline) -> None:
    """Of two targets, one is read by nobody and still not the other's."""
    pipeline.step(BATCH if pipeline.reads_inputs else None, TARGET + pipeline.reads_inputs)


def refusals() -> list[str]:
    return [refused(case) for case in (lacking, changing, differing)]


def test_what_is_needed_and_not_given_is_refused() -> None:
    first, second = run(2, refusals)
    assert first[0].startswith("the batch is None on device 0, whose first stage reads it; None is")
    assert second[0].startswith("the batch is None on device 0")
    assert second[1].startswith("device 1 is given no batch now, and was in the first step")
    assert first[1].startswith("device 1 is given no batch now")
    assert (
        first[2]
        == second[2]
        == ("the first batch or target of ranks [1] differ from those of rank 0")
    )


def flat(output: Tensor, target: Tensor) -> Tensor:
    return squared(output.flatten(), target)


def apart(transport: Any) -> list[str]:
    """In each rank: what is said of targets that are cut elsewhere than their batch."""
    program, said = one_f_one_b(devices=2, microbatches=4), []
    for rows, size in ((8, 7), (10, 20)):
        pair = torch.ones(rows, WIDTH), torch.ones(size, WIDTH)
        for name in ("step", "evaluate"):
            with Pipeline(linear(2), program, loss=squared, transport=transport) as pipeline:
                given = only(pipeline, *pair)
                try:
                    pipeline.step(*given) if name == "step" else pipeline.evaluate([given])
                    said.append(f"nothing of {rows} and {size}")
                except (InputError, RankError) as error:
                    said.append(str(error))
    return said


def test_rows_that_belong_together_are_in_one_microbatch() -> None:
    """Else torch would spread one row over another, which nobody has asked for."""
    alone = apart("auto")
    assert not [one for one in alone if "nothing" in one]
    assert (
        "a batch of 8 rows is cut into microbatches of 2, 2, 2, 2, and a target of 7 into 2, 2, 2,"
        " 1" in alone[0]
    )
    on_ranks = [one for each in over_transports(2, apart) for rank in each for one in rank]
    assert not [one for one in on_ranks if "nothing" in one]


def test_a_row_may_have_several_in_the_target() -> None:
    (batch, target), stages = batches(8, 1)[0], linear(2)
    pipeline = Pipeline(stages, one_f_one_b(devices=2, microbatches=4), loss=flat)
    found = pipeline.evaluate([(batch, target.flatten()), (batch[:4], target[:4].flatten())])
    output = nn.Sequential(*stages)(torch.cat([batch, batch[:4]]))
    wanted = squared(output, torch.cat([target, target[:4]]))
    assert found.loss == pytest.approx(wanted.item(), rel=1e-6)


def test_one_process_needs_all() -> None:
    pipeline = Pipeline(linear(2), gpipe(devices=2, microbatches=2), loss=squared)
    assert pipeline.reads_inputs
    assert pipeline.reads_targets
    with pytest.raises(InputError, match="the target is None on device 0, 1, whose last stage"):
        pipeline.step(BATCH, None)
    with pytest.raises(InputError, match="the batch is None"):
        pipeline.predict(None)


def copied_bytes(transport: Any) -> int:
    """In each rank: bytes of the inputs and targets that an asynchronous step has copied."""
    program = pipedream_2bw(devices=3, microbatches=3)
    copied: list[Tensor] = []

    def cloned(value: Value) -> Value:
        copied.extend(value.leaves)
        return value.with_leaves(leaf.clone() for leaf in value.leaves)

    with (
        pytest.MonkeyPatch.context() as patched,
        Pipeline(
            linear(program.stages), program, loss=squared, optimizer=adam, transport=transport
        ) as pipeline,
    ):
        patched.setattr(Value, "cloned", cloned)
        pipeline.step(*batches(6, 1)[0])
        pipeline.drain()
    return sum(leaf.nbytes for leaf in copied)


def test_an_asynchronous_step_copies_once_what_is_read() -> None:
    size = 6 * WIDTH * 4
    assert run(3, copied_bytes, "shared") == [size, 0, size]


@pytest.mark.parametrize("schedule", [pipedream, pipedream_2bw, wpipe])
def test_a_batch_may_be_changed_once_its_step_is_over(schedule: Any) -> None:
    program = schedule(devices=2, microbatches=4)

    def trained(*, is_changed: bool) -> list[Tensor]:
        pipeline = Pipeline(linear(program.stages), program, loss=squared, optimizer=adam)
        losses = []
        for batch, target in batches(8, 6):
            losses.append(pipeline.step(batch, target).losses)
            if is_changed:
                batch.fill_(math.nan)
                target.fill_(math.nan)
        pipeline.drain()
        return [
            *losses,
            *(w.detach() for one in pipeline.modules.values() for w in one.parameters()),
        ]

    pairs = zip(trained(is_changed=True), trained(is_changed=False), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_a_forward_copies_what_it_is_lent_when_it_reads_it() -> None:
    program = pipedream_2bw(devices=2, microbatches=4)
    pipeline = Pipeline(linear(program.stages), program, loss=squared, optimizer=adam)
    batch = pipeline._parts.training._lanes.binder.batch
    for data, target in batches(8, 3):
        pipeline.step(data, target)
        assert batch.inputs.are_all_ours
        assert len(batch.inputs) < program.microbatches  # the rest was read, and is in flight
