"""Stages and losses over the whole batch: every sample is compared with all others."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.runtime.exactness import differences
from tests.runtime.models import WIDTH, batches, squared
from tests.runtime.ranks import over_transports
from tests.runtime.test_branches import Join
from weft.errors import InputError, ProgramError
from weft.ir.graph import Graph, Stage
from weft.ir.program import Program
from weft.lower import recompute
from weft.runtime import Pipeline
from weft.schedules import REGISTRY, Shape, gpipe, one_f_one_b

WHOLE = Stage(is_whole_batch=True)
TOWERS = Graph((Stage(), Stage(), WHOLE), ((0, 2), (1, 2)))
MIDDLE = Graph((Stage(), WHOLE, Stage()), ((0, 1), (0, 2), (1, 2)))
FIRST = Graph((WHOLE, Stage(), Stage()), ((0, 1), (1, 2)))


class Contrast(nn.Module):
    """How alike each sample of one tower is to each of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        one, other = functional.normalize(left, dim=-1), functional.normalize(right, dim=-1)
        found: Tensor = self.scale * one @ other.T
        return found


class Centred(nn.Module):
    """Rows, each less the mean of the batch; what is dropped is drawn once for all."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.drop = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2)

    def forward(self, value: Tensor) -> Tensor:
        found: Tensor = self.drop(self.line(value - value.mean(dim=0)))
        return found


def matched(likeness: Tensor, _target: Tensor) -> Tensor:
    return functional.cross_entropy(likeness, torch.arange(len(likeness)))


def all_to_all(output: Tensor, target: Tensor) -> Tensor:
    """A loss that is not the mean of those of the microbatches."""
    return squared(torch.corrcoef(output), torch.corrcoef(target))


def towers() -> list[nn.Module]:
    torch.manual_seed(0)
    return [Join(1), Join(1), Contrast()]


def middle() -> list[nn.Module]:
    torch.manual_seed(0)
    return [Join(1), Centred(), Join(2)]


def program_of(graph: Graph) -> Program:
    return REGISTRY["gpipe"].program(Shape.of_graph(graph, microbatches=4))


def differences_by_case(transport: Any = "auto") -> dict[str, list[str]]:
    chain = gpipe(devices=3, microbatches=4)
    data, again = batches(11, 2), {"transport": transport}
    cases = {
        "towers": differences(towers(), program_of(TOWERS), data, loss=matched, **again),
        "middle": differences(middle(), program_of(MIDDLE), data, **again),
        "recomputed": differences(middle(), recompute(program_of(MIDDLE)), data, **again),
        "first": differences([Centred(), Join(1), Join(1)], program_of(FIRST), data, **again),
        "loss": differences(
            [Join(1), Join(1), Join(1)], chain, data, loss=all_to_all, whole_batch=True, **again
        ),
    }
    return {name: found for name, found in cases.items() if found}


def test_whole_batches_are_exact() -> None:
    assert differences_by_case() == {}


def test_whole_batches_on_ranks() -> None:
    assert over_transports(3, differences_by_case) == [[{}] * 3] * 2


def test_a_contrastive_loss_is_that_of_the_unsplit_batch() -> None:
    stages = towers()
    one, other, contrast = copy.deepcopy(stages)
    ((batch, target),) = batches(11, 1)
    pipeline = Pipeline(stages, program_of(TOWERS), loss=matched)
    result = pipeline.step(batch, target)
    loss = matched(contrast(one(batch), other(batch)), target)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(result.loss, loss)
    torch.testing.assert_close(pipeline.evaluate(batch, target).loss, loss)
    found = pipeline.evaluate([(batch, target)] * 2, metrics={"likeness": lambda o, _: o.mean()})
    likeness = contrast(one(batch), other(batch))
    assert found.loss == pytest.approx(float(loss.detach()))
    assert found.metrics["likeness"] == pytest.approx(float(likeness.detach().mean()), abs=1e-6)
    torch.testing.assert_close(pipeline.predict(batch), likeness)
    for mine, theirs in zip(stages, (one, other, contrast), strict=True):
        for left, right in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(left.grad, right.grad)


class Half(nn.Module):
    """Reads what the whole batch gave it for some microbatches alone."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(WIDTH, WIDTH)

    def forward(self, skipped: Tensor, value: Tensor) -> Tensor:
        found: Tensor = self.line(skipped)
        return found + value if float(skipped.detach().sum()) > 0 else found


def test_microbatches_without_a_gradient_take_none_from_the_others() -> None:
    ((batch, target),) = batches(12, 1)
    stages = [nn.Identity(), nn.Linear(WIDTH, WIDTH), Half()]
    copies = copy.deepcopy(stages)
    signs = [float(part.sum()) > 0 for part in torch.split(batch, 3)]
    assert {*signs} == {True, False}
    assert differences(stages, program_of(MIDDLE), [(batch, target)] * 2) == []
    Pipeline(copies, program_of(MIDDLE), loss=squared).step(batch, target)
    assert copies[1].weight.grad is not None


def test_one_f_one_b_is_refused_by_the_verifier() -> None:
    with pytest.raises(ProgramError, match=r"2F0 covers a part of the batch.* use gpipe"):
        Pipeline(
            [Join(1) for _ in range(3)],
            one_f_one_b(devices=3, microbatches=4),
            loss=all_to_all,
            whole_batch=True,
        )


def test_weights_of_microbatches_are_refused() -> None:
    pipeline = Pipeline(towers(), program_of(TOWERS), loss=matched)
    with pytest.raises(InputError, match="the loss is of the whole batch"):
        pipeline.step(*batches(11, 1)[0], weights=[0.25] * 4)


class Mean(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return value.mean(dim=0)


def test_a_stage_between_others_keeps_the_rows() -> None:
    graph = Graph((Stage(), WHOLE, Stage()), ((0, 1), (1, 2)))
    pipeline = Pipeline([Join(1), Mean(), Join(1)], program_of(graph), loss=squared)
    with pytest.raises(InputError, match="not one row for each"):
        pipeline.step(*batches(12, 1)[0])


def test_one_device_takes_the_whole_batch_and_learns_from_it() -> None:
    """Data have no gradient, also where the first stage is the one that reads all of them."""
    ((batch, target),) = batches(11, 1)
    stage = Join(1)
    copy_ = copy.deepcopy(stage)
    program = gpipe(devices=1, microbatches=4)
    result = Pipeline([stage], program, loss=all_to_all, whole_batch=True).step(batch, target)
    loss = all_to_all(copy_(batch), target)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(result.loss, loss)
    for mine, theirs in zip(stage.parameters(), copy_.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_an_evaluation_counts_rows_where_the_loss_reads_no_target() -> None:
    pipeline = Pipeline(
        [Join(1)], gpipe(devices=1, microbatches=4), loss=matched_alone, whole_batch=True
    )
    parts = [rows for rows, _ in (*batches(8, 1), *batches(4, 1))]
    each = [pipeline.evaluate(part, ()).loss.item() for part in parts]
    found = pipeline.evaluate([(part, ()) for part in parts])
    assert found.loss == pytest.approx((8 * each[0] + 4 * each[1]) / 12)
    assert found.samples == 12


def matched_alone(output: Tensor) -> Tensor:
    return matched(output @ output.T, output)
