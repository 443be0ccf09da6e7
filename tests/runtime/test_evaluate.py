"""Evaluating and predicting: what the unsplit model gives, and nothing is changed by it."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from tests.runtime.models import VOCABULARY, WIDTH, adam, batches, linear, squared
from tests.runtime.plain import is_near
from weft.errors import InputError
from weft.runtime import Evaluation, Pipeline
from weft.runtime.losses import CrossEntropy
from weft.schedules import chimera, one_f_one_b, pipedream_2bw, zbv

PROGRAMS = {
    "1f1b": one_f_one_b(devices=2, microbatches=4),
    "zbv": zbv(devices=2, microbatches=4),
    "chimera": chimera(devices=2, microbatches=4),
}
IGNORED = -100


def stages_of(count: int) -> list[nn.Module]:
    """Words to logits in double precision, with what evaluating could disturb."""
    torch.manual_seed(0)
    line = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2)) for _ in range(count)]
    first, last = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
    line[0], line[-1] = nn.Sequential(first, line[0]), nn.Sequential(line[-1], last)
    return [stage.double() for stage in line]


def sentences(rows: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(rows)
    batch, target = torch.randint(VOCABULARY, (2, rows, 3), generator=generator)
    target[torch.rand(rows, 3, generator=generator) < 0.4] = IGNORED
    return TensorDataset(batch, target)


def accuracy(logits: Tensor, target: Tensor) -> Tensor:
    is_valid = target != IGNORED
    return (logits.argmax(-1) == target)[is_valid].double().mean()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_loader_has_the_figures_of_the_unsplit_data(name: str) -> None:
    """Batches of 8 and a last one of 3, for which four microbatches are too many."""
    program, data = PROGRAMS[name], sentences(19)
    stages = stages_of(program.stages)
    model = nn.Sequential(*copy.deepcopy(stages)).eval()
    pipeline = Pipeline(stages, program, loss=CrossEntropy())
    found = pipeline.evaluate(DataLoader(data, batch_size=8), metrics={"accuracy": accuracy})
    batch, target = data.tensors
    logits = model(batch)
    wanted = functional.cross_entropy(logits.flatten(0, 1), target.flatten()).item()
    assert found.loss == pytest.approx(wanted, rel=1e-9)
    assert found.metrics == {"accuracy": pytest.approx(accuracy(logits, target).item(), rel=1e-9)}
    assert (found.batches, found.samples) == (3, 19)


def test_a_loss_without_counts_is_weighted_by_rows_and_extras_by_batches() -> None:
    class Both:
        def __call__(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
            return squared(output, target), output.mean()

    stages = linear(2)
    pipeline = Pipeline(stages, PROGRAMS["1f1b"], loss=Both())
    ((batch, target),) = batches(13, 1)
    found = pipeline.evaluate([(batch[:8], target[:8]), (batch[8:], target[8:])])
    output = nn.Sequential(*stages)(batch)
    means = [part.mean() for part in output[8:].split(2)]  # of microbatches of 2, 2 and 1
    extra = (8 * output[:8].mean() + 5 * torch.stack(means).mean()) / 13
    assert found.loss == pytest.approx((squared(output, target) + extra).item(), rel=1e-6)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_loss_without_targets_is_weighted_by_rows_of_the_batch(name: str) -> None:
    """As of an autoencoder: its microbatches have rows, though its targets have none."""
    program = PROGRAMS[name]
    stages = linear(program.stages)
    pipeline = Pipeline(stages, program, loss=lambda output, *_: output.square().mean())
    ((batch, _),) = batches(13, 1)
    output = nn.Sequential(*copy.deepcopy(stages))(batch)
    for empty in ((), torch.tensor(1.0), {"labels": None}):
        loader = [(batch[:8], empty), (batch[8:], empty)]
        found = pipeline.evaluate(loader, metrics={"mean": lambda output, *_: output.mean()})
        assert found.loss == pytest.approx(output.square().mean().item(), rel=1e-6)
        assert found.metrics["mean"] == pytest.approx(output.mean().item(), rel=1e-6)
        assert found.samples == 13


def disturbed(*, is_evaluated: bool) -> list[Tensor]:
    """Losses, weights and buffers of two steps, with or without evaluations between."""
    torch.manual_seed(0)
    stages = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.5))
        for _ in range(2)
    ]
    stages[1][2].eval()  # as its user left it
    pipeline = Pipeline(stages, PROGRAMS["1f1b"], loss=squared, optimizer=adam)
    losses = []
    for batch, target in batches(8, 2):
        losses.append(pipeline.step(batch, target).loss)
        if is_evaluated:
            loader = DataLoader(TensorDataset(batch, target), batch_size=4, shuffle=True)
            pipeline.evaluate(noisy(loader))
            pipeline.predict(batch)
    assert [module.training for module in stages[1]] == [True, True, False]
    drawn = torch.tensor([noise()])
    return [*losses, drawn, *(t for stage in stages for t in stage.state_dict().values())]


def noisy(loader: Any) -> Iterator[Any]:
    for batch, target in loader:
        yield batch + noise(), target


def noise() -> float:
    return torch.rand(()).item() + random.random() + np.random.random()


def test_evaluating_changes_nothing() -> None:
    """Dropout, batch norm, modes, and the global generators, of which a loader draws."""
    random.seed(0)
    np.random.seed(0)
    states = random.getstate(), np.random.get_state()
    before = disturbed(is_evaluated=False)
    random.setstate(states[0])
    np.random.set_state(states[1])
    after = disturbed(is_evaluated=True)
    assert all(map(torch.equal, before, after))


def test_evaluating_keeps_gradients_and_finishes_what_is_in_flight() -> None:
    stages = linear(2)
    pipeline = Pipeline(stages, pipedream_2bw(devices=2, microbatches=4, updates=6), **SETTINGS)
    for batch, target in batches(8, 2):
        pipeline.step(batch, target)
    ((batch, target),) = batches(8, 1)
    found = pipeline.evaluate([(batch, target)])
    assert found.loss == pytest.approx(squared(nn.Sequential(*stages)(batch), target).item())
    assert found == Evaluation(loss=found.loss, metrics={}, batches=1, samples=8)


SETTINGS: dict[str, Any] = {"loss": squared, "optimizer": adam}


def test_a_metric_may_return_a_number_of_numpy() -> None:
    pipeline = Pipeline(linear(2), PROGRAMS["1f1b"], loss=squared)
    numbers = {"half": np.float32(0.5), "two": np.int64(2)}
    metrics = {name: lambda *_, found=found: found for name, found in numbers.items()}
    assert pipeline.evaluate(batches(8, 1), metrics=metrics).metrics == {"half": 0.5, "two": 2.0}


@pytest.mark.parametrize("name", PROGRAMS)
def test_inference_mode_changes_nothing(name: str) -> None:
    """Whoever evaluates writes it around; batches that are made there are of that mode, too."""
    pipelines = [Pipeline(linear(PROGRAMS[name].stages), PROGRAMS[name], **SETTINGS) for _ in "ab"]
    found = [everything_of(pipelines[0])]
    with torch.inference_mode():
        found.append(everything_of(pipelines[1]))
    found += [[one.step(*batches(8, 1)[0]).loss] for one in pipelines]
    for inside, outside in ((found[1], found[0]), (found[3], found[2])):
        assert all(map(torch.equal, inside, outside))


def everything_of(pipeline: Pipeline) -> list[Tensor]:
    """What it predicts, evaluates and learns; also by a number that all microbatches read."""
    ((batch, target),) = batches(8, 1)
    batch, number = batch + 0, target.mean()
    return [
        pipeline.predict(batch),
        pipeline.evaluate(batch, target).loss,
        torch.tensor(pipeline.evaluate([(batch, target + 0), (batch, number)]).loss),
        pipeline.step(batch, target + 0).loss,
    ]


def test_what_is_no_loader_is_refused() -> None:
    pipeline = Pipeline(linear(2), PROGRAMS["1f1b"], loss=squared)
    ((batch, target),) = batches(8, 1)
    with pytest.raises(InputError, match="the loader yields a Tensor; let it yield pairs"):
        pipeline.evaluate([batch])
    with pytest.raises(InputError, match="metrics for a loader"):
        pipeline.evaluate(batch, target, metrics={"accuracy": accuracy})  # type: ignore[call-overload]
    with pytest.raises(InputError, match="the metric rows returns Tensor; let it return one"):
        pipeline.evaluate([(batch, target)], metrics={"rows": lambda output, _: output})
    with pytest.raises(InputError, match="a batch of no rows"):
        pipeline.evaluate([(batch[:0], target[:0])])


# predictions


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("rows", [8, 5, 1])
def test_a_prediction_is_what_the_unsplit_model_returns(name: str, rows: int) -> None:
    program = PROGRAMS[name]
    stages = stages_of(program.stages)
    model = nn.Sequential(*copy.deepcopy(stages)).eval()
    batch = sentences(rows).tensors[0]
    found = Pipeline(stages, program, loss=CrossEntropy()).predict(batch)
    assert not found.requires_grad
    assert is_near(found, model(batch).detach())


class Several(nn.Module):
    """Returns a value for each row, one for all, and what is no tensor."""

    def forward(self, value: Tensor) -> dict[str, Any]:
        return {"rows": value, "mean": value.mean(), "name": "several"}


def test_leaves_are_joined_or_stacked_and_a_list_gives_a_list() -> None:
    pipeline = Pipeline([*linear(1), Several()], PROGRAMS["1f1b"], loss=lambda output, _: output)
    ((batch, _),) = batches(8, 1)
    wanted = torch.cat([pipeline.modules[0, 0](part) for part in torch.split(batch, 2)]).detach()
    found = pipeline.predict(batch)
    assert torch.equal(found["rows"], wanted)
    assert torch.equal(found["mean"], torch.stack([part.mean() for part in torch.split(wanted, 2)]))
    assert found["name"] == "several"
    parts = pipeline.predict([*batch.split([1, 2, 3, 2])])
    assert [len(part["rows"]) for part in parts] == [1, 2, 3, 2]
    assert torch.allclose(torch.cat([part["rows"] for part in parts]), wanted, atol=1e-6)
