"""The loss of a step is that of the whole batch: over its valid targets, with what stages add."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

from tests.runtime.exactness import differences
from tests.runtime.models import VOCABULARY, WIDTH, adam, batches, squared
from tests.runtime.plain import is_near
from weft.errors import InputError
from weft.ir.program import Program
from weft.lower import recompute
from weft.runtime import Pipeline, Reference
from weft.runtime.losses import CrossEntropy
from weft.schedules import chimera, gpipe, one_f_one_b, pipedream_2bw, zbv

LENGTH = 5
IGNORED = -100
VALID = (5, 0, 1, 3, 5, 5, 0, 0)  # targets of each sequence; the last microbatch of 4 has none

PROGRAMS = {
    "gpipe": gpipe(devices=2, microbatches=4),
    "zbv": zbv(devices=2, microbatches=4),
    "chimera": chimera(devices=2, microbatches=4),
    "recomputed": recompute(one_f_one_b(devices=2, microbatches=4)),
}


class Routed(nn.Module):
    """Adds what its router costs to what the stages before it have added."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.router = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, value: Tensor, cost: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.router(value)
        balance = scores.softmax(-1).flatten(0, -2).mean(0).square().sum()
        z_loss = scores.logsumexp(-1).square().mean()
        return value + self.line(value), cost + 0.1 * balance + 0.01 * z_loss


class First(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        return self.table(ids), torch.zeros((), dtype=self.table.weight.dtype)


class Last(Routed):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, value: Tensor, cost: Tensor) -> tuple[Tensor, Tensor]:
        value, cost = super().forward(value, cost)
        return self.head(value), cost


class WithCosts:
    """Cross entropy over valid targets, and what routers cost."""

    entropy = CrossEntropy()

    def __call__(self, output: tuple[Tensor, Tensor], target: Tensor) -> tuple[Tensor, Tensor]:
        logits, costs = output
        return self.entropy(logits, target), costs

    def count(self, target: Tensor) -> Tensor:
        return self.entropy.count(target)


def stages_of(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [First(), *(Routed() for _ in range(count - 2)), Last()]


def padded() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    batch = torch.randint(VOCABULARY, (8, LENGTH), generator=generator)
    target = torch.randint(VOCABULARY, (8, LENGTH), generator=generator)
    for row, valid in enumerate(VALID):
        target[row, valid:] = IGNORED
    return batch, target


def plain_loss(stages: list[nn.Module], batch: Tensor, target: Tensor) -> Tensor:
    """Plain torch: cross entropy of the unsplit batch, and the mean cost of its microbatches."""
    logits, costs = [], []
    for part in torch.split(batch, 2):
        value: Any = (part,)
        for stage in stages:
            value = stage(*value)
        logits.append(value[0])
        costs.append(value[1])
    flat = torch.cat(logits).flatten(0, 1)
    return functional.cross_entropy(flat, target.flatten()) + torch.stack(costs).mean()


@pytest.mark.parametrize("name", ["gpipe", "zbv", "chimera"])
def test_a_step_has_the_loss_and_gradients_of_the_unsplit_batch(name: str) -> None:
    program = PROGRAMS[name]
    stages = [stage.double() for stage in stages_of(program.stages)]
    alone, (batch, target) = copy.deepcopy(stages), padded()
    wanted = plain_loss(alone, batch, target)
    wanted.backward()  # type: ignore[no-untyped-call]
    pipeline = Pipeline(stages, program, loss=WithCosts())
    assert is_near(pipeline.step(batch, target).loss, wanted.detach())
    assert is_near(pipeline.evaluate(batch, target).loss, wanted.detach())
    for (_, index), module in pipeline.modules.items():
        for mine, other in zip(module.parameters(), alone[index].parameters(), strict=True):
            assert is_near(mine.grad, other.grad)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_has_the_bits_of_the_reference(name: str) -> None:
    program: Program = PROGRAMS[name]
    data = [padded()] * 3
    assert not differences(stages_of(program.stages), program, data, loss=WithCosts())


def test_an_asynchronous_program_has_the_bits_of_the_reference() -> None:
    program, stages = pipedream_2bw(devices=2, microbatches=4, updates=6), stages_of(2)
    copies, settings = copy.deepcopy(stages), dict[str, Any](loss=WithCosts(), optimizer=adam)
    pipeline = Pipeline(stages, program, **settings)
    reference = Reference(copies, program, **settings)
    for _ in range(4):
        assert torch.equal(pipeline.step(*padded()).loss, reference.step(*padded()))
    pipeline.drain()
    for mine, other in zip(stages, copies, strict=True):
        for name, weight in mine.named_parameters():
            assert torch.equal(weight, other.get_parameter(name))


class Nan:
    """A loss whose mean over nothing is nan, as people write it, of one of two outputs."""

    def __call__(self, output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        is_valid = target != IGNORED
        chosen = output[0].log_softmax(-1).gather(-1, target.clamp(0).unsqueeze(-1)).squeeze(-1)
        return -(chosen * is_valid).sum() / is_valid.sum()

    def count(self, target: Tensor) -> Tensor:
        return (target != IGNORED).sum()


def test_a_microbatch_of_padding_counts_nothing_and_reaches_nothing_else() -> None:
    """What the loss does not use has no gradient, rather than one of zero."""
    stages, (batch, target) = stages_of(2), padded()
    pipeline = Pipeline(stages, gpipe(devices=2, microbatches=4), loss=Nan())
    losses = pipeline.step(batch, target).losses
    assert losses[3] == 0
    assert losses.isfinite().all()
    grads = {name: weight.grad for name, weight in stages[1].named_parameters()}
    assert grads["head.weight"] is not None
    assert grads["head.weight"].isfinite().all()
    assert grads["router.weight"] is None
    assert pipeline.step(batch, torch.full_like(target, IGNORED)).loss == 0


def test_given_weights_count_in_place_of_targets() -> None:
    batch, target = padded()
    weights = [0.4, 0.3, 0.2, 0.0]
    target = target.clamp(0)
    pipeline = Pipeline(stages_of(2), gpipe(devices=2, microbatches=4), loss=WithCosts())
    found = pipeline.step(batch, target, weights=weights).losses
    each = [
        pipeline.evaluate(batch[rows].repeat(4, 1), target[rows].repeat(4, 1)).loss
        for rows in torch.split(torch.arange(8), 2)
    ]
    assert torch.allclose(found, torch.stack(each) * torch.tensor(weights))


def test_a_loss_that_returns_something_else_is_refused() -> None:
    batch, target = padded()

    def listed(output: Any, target: Tensor) -> list[Tensor]:
        return [output[0].sum()]

    wrong: Callable[..., Any] = listed
    pipeline = Pipeline(stages_of(2), gpipe(devices=2, microbatches=4), loss=wrong)
    with pytest.raises(InputError, match="the loss returns a list; let it return a tensor, or a"):
        pipeline.step(batch, target)


def each_row(output: Tensor, target: Tensor) -> Tensor:
    return functional.mse_loss(output, target, reduction="none").mean(dim=1)


def with_each_row(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    return output.mean(), each_row(output, target)


def imaginary(output: Tensor, target: Tensor) -> Tensor:
    found = each_row(output, target).mean()
    return torch.complex(found, found)


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (each_row, r"a tensor of shape \[2\]; let it return one number"),
        (with_each_row, r"a tensor of shape \[2\]; let it return one number"),
        (imaginary, "complex64; let it return a real number"),
    ],
)
def test_a_loss_that_torch_could_not_differentiate_is_refused(
    loss: Callable[..., Any], why: str
) -> None:
    batch, target = torch.randn(2, 8, 4)
    stages = [nn.Linear(4, 4) for _ in range(2)]
    pipeline = Pipeline(stages, gpipe(devices=2, microbatches=4), loss=loss)
    for run in (
        lambda: pipeline.step(batch, target),
        lambda: pipeline.evaluate(batch, target),
        lambda: pipeline.evaluate([(batch, target)]),
    ):
        with pytest.raises(InputError, match=f"the loss returns {why}"):
            run()


# cross entropy


def test_causal_cross_entropy_is_that_of_hugging_face() -> None:
    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=VOCABULARY, n_positions=8)
    model: Any = GPT2LMHeadModel(config)
    model.eval()
    batch, _ = padded()
    labels = batch.clone()
    for row, valid in enumerate(VALID):
        labels[row, valid:] = IGNORED
    found = model(input_ids=batch, labels=labels)
    loss = CrossEntropy(shift=True)
    assert torch.allclose(loss(found.logits, labels), found.loss, rtol=1e-6)
    assert loss.count(labels) == sum(max(0, valid - 1) for valid in VALID)


def test_cross_entropy_takes_half_precision_to_fp32() -> None:
    logits = torch.randn(6, VOCABULARY).bfloat16()
    target = torch.arange(6)
    loss = CrossEntropy(ignore_index=2, label_smoothing=0.1)
    wanted = functional.cross_entropy(logits.float(), target, ignore_index=2, label_smoothing=0.1)
    assert torch.equal(loss(logits, target), wanted)
    assert loss.count(target) == 5


def test_logits_that_do_not_fit_are_refused_before_the_first_action() -> None:
    line = [nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)]
    pipeline = Pipeline(line, gpipe(devices=2, microbatches=4), loss=CrossEntropy())
    batch, target = padded()
    with pytest.raises(InputError, match="the loss does not fit a microbatch of shape"):
        pipeline.step(batch, target[:, 1:])


class Detaching(nn.Module):
    """A stage that lets no gradient through."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.line(value).detach()
        return out


def hits(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(1) == target.argmax(1)).float().mean()


@pytest.mark.parametrize("kind", [Pipeline, Reference])
@pytest.mark.parametrize(("last", "loss"), [(Detaching, squared), (None, hits)])
def test_a_loss_by_which_nothing_learns_is_refused(kind: Any, last: Any, loss: Any) -> None:
    """Torch refuses it, too; a step would leave all weights as they are."""
    line = nn.Linear(WIDTH, WIDTH)
    stages = [line, last() if last else nn.Linear(WIDTH, WIDTH)]
    one = kind(stages, gpipe(devices=2, microbatches=2), loss=loss)
    ((batch, target),) = batches(8, 1)
    with pytest.raises(InputError, match="depends on nothing that learns: look for detach"):
        one.step(batch, target)
