"""Precision: as plain PyTorch computes in these types, with every schedule, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.runtime.models import WIDTH, adam, batches, is_same, layers, likelihood, squared, words
from tests.runtime.ranks import run
from weft.errors import InputError
from weft.ir.program import Program
from weft.lower import recompute
from weft.runtime import Pipeline, Reference, Scale, split
from weft.runtime.weights.staleness import scoped
from weft.schedules import (
    REGISTRY,
    Schedule,
    Shape,
    chimera,
    gpipe,
    naive_async,
    one_f_one_b,
    pipedream,
    zb_h1,
)

PRECISIONS = ("bf16", "fp16", "autocast")
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def differences(
    stages: list[nn.Module],
    program: Program,
    data: list[tuple[Any, Any]],
    *,
    copies: list[nn.Module] | None = None,
    **settings: Any,
) -> list[str]:
    """Train by the program, and copies by the reference; what is not equal."""
    copies = copies or copy.deepcopy(stages)
    shared = {"loss": squared, "optimizer": adam, "seed": 3, **settings}
    pipeline = Pipeline(stages, program, **shared)
    reference = Reference(copies, program, groups=scoped(program, None), **shared)
    found = []
    for step, (batch, target) in enumerate(data):
        if not torch.equal(pipeline.step(batch, target).loss, reference.step(batch, target)):
            found.append(f"the loss of step {step}")
    if program.period is not None:
        pipeline.drain()
    for (pipe, index), module in pipeline.modules.items():
        for mine, theirs in zip(
            module.state_dict().items(), copies[index].state_dict().values(), strict=True
        ):
            if not torch.equal(mine[1], theirs):
                found.append(f"{mine[0]} of stage {index} on pipe {pipe}")
    return found


# every schedule


def program_of(schedule: Schedule) -> Program:
    least, most = schedule.stages_per_device
    is_single = schedule.name in ("pipedream", "naive-async")
    return schedule.program(
        Shape(
            devices=2,
            microbatches=1 if is_single else 4,
            stages_per_device=least if most else 2,
            updates=6 if schedule.is_asynchronous else 1,
        )
    )


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_schedule_is_exact_in_every_precision(precision: str) -> None:
    for schedule in REGISTRY:
        program = program_of(schedule)
        stages = split(layers(program.stages), stages=program.stages)
        data = batches(program.microbatches * 2 - 1, 2)
        assert differences(stages, program, data, precision=precision) == [], schedule.name


def train() -> list[str]:
    """In each rank."""
    cases: list[tuple[Program, str]] = [
        (one_f_one_b(devices=2, microbatches=4), "bf16"),
        (zb_h1(devices=2, microbatches=4), "autocast"),
        (chimera(devices=2, microbatches=4), "fp16"),
        (naive_async(devices=2, microbatches=1, updates=6), "autocast"),
        (pipedream(devices=2, microbatches=1, updates=6), "fp16"),
    ]
    found = []
    for program, precision in cases:
        stages = split(layers(program.stages), stages=program.stages)
        scale = Scale(2.0**24, interval=2) if precision == "fp16" else None
        more: Any = {"precision": precision, "scale": scale}
        found += differences(stages, program, batches(7, 5), **more)
    return found


def test_precisions_on_ranks() -> None:
    assert run(2, train) == [[]] * 2


# plain PyTorch on the unsplit model


def language() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(11, WIDTH),
        nn.Linear(WIDTH, WIDTH),
        nn.LayerNorm(WIDTH),
        nn.Linear(WIDTH, 11),
    )


def plain_half(
    model: nn.Module, data: list[tuple[Tensor, Tensor]], dtype: torch.dtype, scale: float
) -> list[float]:
    """A loop with a copy in half precision; gradients, loss and norm in single. The scales.

    Every update that overflows is left out, and halves the scale.
    """
    weights, scales = [*model.parameters()], []
    optimizer = torch.optim.AdamW(weights, lr=1e-2)
    for batch, target in data:
        half = copy.deepcopy(model).to(dtype)
        sums = [torch.zeros_like(weight) for weight in weights]
        for part, aim in zip(batch.chunk(4), target.chunk(4), strict=True):
            loss = functional.cross_entropy(half(part).float(), aim)
            grads = torch.autograd.grad(loss * 0.25 * scale, [*half.parameters()])
            for total, grad in zip(sums, grads, strict=True):
                total += grad.float()
        for weight, total in zip(weights, sums, strict=True):
            weight.grad = total / scale
        norm = nn.utils.clip_grad_norm_(weights, 0.3, foreach=False)
        assert norm.dtype == torch.float32
        if torch.isfinite(norm):
            optimizer.step()
        elif scale > 1:
            scale /= 2
        scales.append(scale)
    return scales


@pytest.mark.parametrize("precision", HALF)
def test_half_precision_is_a_loop_with_a_copy_of_the_model(precision: str) -> None:
    """By hand, the reference and the pipeline: the same bits."""
    program, data = gpipe(devices=2, microbatches=4), words(12, 6)
    models = [language() for _ in range(3)]
    start = 2.0**20 if precision == "fp16" else 1.0
    scales = plain_half(models[0], data, HALF[precision], start)
    shared: Any = {
        "loss": likelihood,
        "optimizer": adam,
        "clip": 0.3,
        "precision": precision,
        "scale": Scale(start) if precision == "fp16" else None,
    }
    reference = Reference(split(models[1], stages=2), program, **shared)
    pipeline = Pipeline(split(models[2], stages=2), program, **shared)
    skipped = []
    for batch, target in data:
        reference.step(batch, target)
        skipped.append(pipeline.step(batch, target).is_skipped)
    if precision == "fp16":
        assert reference.scale == scales[-1] < start, "so that some updates are skipped"
        assert any(skipped)
        assert not all(skipped)
    for wanted, *others in zip(*(model.parameters() for model in models), strict=True):
        assert all(is_same(wanted, other) for other in others)
        assert wanted.dtype == torch.float32


def test_autocast_is_a_loop_under_autocast() -> None:
    """The user wraps nothing; evaluation is cast as well."""
    program, data = gpipe(devices=2, microbatches=4), words(12, 4)
    models = [language() for _ in range(3)]
    shared: Any = {"loss": likelihood, "optimizer": adam, "clip": 0.3, "precision": "autocast"}
    reference = Reference(split(models[1], stages=2), program, **shared)
    pipeline = Pipeline(split(models[2], stages=2), program, **shared)
    optimizer = adam(models[0].named_parameters())
    for batch, target in data:
        for part, aim in zip(batch.chunk(4), target.chunk(4), strict=True):
            with torch.autocast("cpu", torch.bfloat16):
                loss = likelihood(models[0](part), aim) * 0.25
            torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_([*models[0].parameters()], 0.3, foreach=False)
        optimizer.step()
        optimizer.zero_grad()
        reference.step(batch, target)
        pipeline.step(batch, target)
    for wanted, *others in zip(*(model.parameters() for model in models), strict=True):
        assert all(is_same(wanted, other) for other in others)
    batch, target = data[0]
    pairs = zip(batch.chunk(4), target.chunk(4), strict=True)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        each = [likelihood(models[0](p), t) * 0.25 for p, t in pairs]
    assert is_same(pipeline.evaluate(batch, target).loss, torch.stack(each).sum())
    assert not torch.is_autocast_enabled("cpu")


def test_under_autocast_a_backward_without_a_stash_finds_newer_weights() -> None:
    """Of what autograd saves, the casts of weights are taken anew, too."""
    program = naive_async(devices=2, microbatches=1, updates=6)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    stages = split(copy.deepcopy(model), stages=2, layers=[2, 1])
    reference = Reference(stages, program, loss=squared, optimizer=adam, precision="autocast")
    optimizers = [adam(model[:2].named_parameters()), adam(model[2:].named_parameters())]
    old: Any = copy.deepcopy(model[:2])  # forwards of the first stage are one update stale
    for batch, target in batches(3, 3):
        reference.step(batch, target)
        stale: Any
        stale, old = old, copy.deepcopy(model[:2])
        with torch.autocast("cpu", torch.bfloat16):
            inner = stale[0](batch)
            value = stale[1](inner)
            given = value.detach().requires_grad_()
            loss = squared(model[2](given), target)
        torch.autograd.backward(loss)
        assert given.grad is not None
        rest = given.grad @ model.get_parameter("1.weight").detach().bfloat16()
        torch.autograd.backward([value], [given.grad], inputs=[*stale[1].parameters()])
        torch.autograd.backward([inner], [rest])
        for mine, theirs in zip(model[:2].parameters(), stale.parameters(), strict=True):
            mine.grad = theirs.grad
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for stage, part in zip(stages, (model[:2], model[2:]), strict=True):
        for mine, theirs in zip(stage.parameters(), part.parameters(), strict=True):
            assert is_same(mine, theirs)


class Upcast(nn.Linear):
    """Computes in single precision, whatever its weights are in."""

    def forward(self, value: Tensor) -> Tensor:
        return functional.linear(value.float(), self.weight.float()).to(value.dtype)


def test_newer_weights_are_rounded_as_forwards_have_them() -> None:
    """Where nothing is stashed, also if a module casts them back."""
    program = naive_async(devices=2, microbatches=1, updates=6)
    torch.manual_seed(0)
    stages: list[nn.Module] = [
        nn.Sequential(*(Upcast(WIDTH, WIDTH) for _ in range(2))) for _ in range(2)
    ]
    assert differences(stages, program, batches(3, 4), precision="bf16") == []


# types


class Noting(nn.Module):
    """Notes the types of what enters, of its gradient, and of the weight."""

    def __init__(self, seen: set[tuple[str, torch.dtype]]) -> None:
        super().__init__()
        self.line, self.seen = nn.Linear(WIDTH, WIDTH), seen

    def forward(self, value: Tensor) -> Tensor:
        if type(value) is Tensor:
            self.seen |= {("value", value.dtype), ("weight", self.line.weight.dtype)}
            if value.requires_grad:
                value.register_hook(lambda grad: self.seen.add(("gradient", grad.dtype)))  # type: ignore[no-untyped-call]
        out: Tensor = self.line(value).float()  # which travels in half precision all the same
        return out


def noted(precision: str) -> tuple[set[tuple[str, torch.dtype]], set[torch.dtype]]:
    seen, judged = set[tuple[str, torch.dtype]](), set[torch.dtype]()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        judged.add(output.dtype)
        return squared(output, target)

    stages: list[nn.Module] = [Noting(seen), Noting(seen)]
    pipeline = Pipeline(stages, gpipe(devices=2, microbatches=2), loss=loss, precision=precision)  # type: ignore[arg-type]
    pipeline.step(*batches(4, 1)[0])
    assert {weight.grad.dtype for stage in stages for weight in stage.parameters()} == {  # type: ignore[union-attr]
        torch.float32
    }
    return seen, judged


def test_what_computes_and_travels_is_half_and_what_adds_up_is_single() -> None:
    for precision, half in HALF.items():
        seen, judged = noted(precision)
        assert seen == {(what, half) for what in ("value", "weight", "gradient")}
        assert judged == {torch.float32}
    seen, judged = noted("autocast")
    assert {dtype for _, dtype in seen} == {torch.float32}


class Mixed(nn.Module):
    """Has frozen weights, running statistics, and a table in single precision."""

    def __init__(self, *, is_cast: bool = True) -> None:
        super().__init__()
        self.fixed, self.line = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.is_cast = nn.BatchNorm1d(WIDTH), is_cast
        self.fixed.requires_grad_(False)
        self.table: Tensor
        self.register_buffer("table", torch.randn(WIDTH))

    def forward(self, value: Tensor) -> Tensor:
        table = self.table.to(value.dtype) if self.is_cast else self.table
        out: Tensor = self.norm(self.line(self.fixed(value + table)))
        return out


@pytest.mark.parametrize("precision", HALF)
def test_frozen_weights_are_cast_and_statistics_are_not(precision: str) -> None:
    """A second stage is frozen as a whole; weights that the user changes are computed with."""

    def made() -> list[nn.Module]:
        torch.manual_seed(0)
        return [Mixed(), nn.Linear(WIDTH, WIDTH).requires_grad_(False), Mixed()]

    for program in (
        gpipe(devices=3, microbatches=4),
        pipedream(devices=3, microbatches=1, updates=8),
    ):
        copies, stages = made(), made()
        data = batches(11, 3)
        assert differences(stages, program, data, copies=copies, precision=precision) == []
        assert stages[0].norm.running_mean.dtype == torch.float32  # type: ignore[union-attr]


@pytest.mark.parametrize("precision", HALF)
def test_what_a_user_does_to_weights_between_steps_is_computed_with(precision: Any) -> None:
    program = gpipe(devices=2, microbatches=2)
    stages: list[nn.Module] = [Mixed(), Mixed()]
    shared: Any = {"loss": squared, "optimizer": adam, "precision": precision}
    pipeline = Pipeline(stages, program, **shared)
    (batch, target), *_ = batches(4, 1)
    pipeline.step(batch, target)
    for weight in (weight for stage in stages for weight in stage.parameters()):
        weight.data.mul_(2)
    stages[1].get_parameter("line.weight").requires_grad_(False)
    copies = copy.deepcopy(stages)
    result = pipeline.step(batch, target)
    assert is_same(result.loss, Reference(copies, program, **shared).step(batch, target))
    lines = [stage.get_parameter("line.weight") for stage in (stages[1], copies[1])]
    assert is_same(*lines)


def test_an_overflow_leaves_the_gradients_that_a_user_has() -> None:
    """Without an optimizer they add up; what is skipped is not added."""
    program = gpipe(devices=2, microbatches=2)
    stages: list[nn.Module] = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
    pipeline = Pipeline(stages, program, loss=squared, precision="fp16", scale=Scale(2.0**10))
    (batch, target), *_ = batches(4, 1)
    pipeline.step(batch, target)
    weights = [weight for stage in stages for weight in stage.parameters()]
    before = [weight.grad.clone() for weight in weights if weight.grad is not None]
    assert pipeline.step(batch, 1e6 * target).is_skipped
    assert len(before) == 4
    assert all(is_same(weight.grad, grad) for weight, grad in zip(weights, before, strict=True))


# what is refused


def test_what_a_precision_cannot_do_is_refused_with_the_remedy() -> None:
    program, batch = gpipe(devices=2, microbatches=2), batches(4, 1)[0]
    stages: list[nn.Module] = [Mixed(is_cast=False), Mixed()]
    with pytest.raises(InputError, match=r"stage 0 computes in bfloat16.*table.*autocast"):
        Pipeline(stages, program, loss=squared, precision="bf16").step(*batch)
    wrong: Any = "half"
    with pytest.raises(InputError, match="one of bf16, fp16, autocast"):
        Pipeline(stages, program, loss=squared, precision=wrong)
    narrow = [stage.bfloat16() for stage in stages]
    for kind in (Pipeline, Reference):
        with pytest.raises(InputError, match=r"line.weight in bfloat16.*model.float\(\)"):
            kind(narrow, program, loss=squared, precision="bf16")
    changing: list[nn.Module] = [Changing(), Changing()]
    with pytest.raises(InputError, match=r"stage 0 changes a weight in its forward.*autocast"):
        Pipeline(changing, program, loss=squared, precision="bf16").step(*batch)


class Changing(nn.Module):
    """Counts in a frozen weight."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.count = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.zeros(1), False)

    def forward(self, value: Tensor) -> Tensor:
        self.count.add_(1)
        out: Tensor = self.line(value)
        return out


# split backwards


class Scaled(nn.Module):
    """Knows the halves of its backward, and counts in which types each of them ran."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.seen = nn.Parameter(torch.ones(WIDTH)), list[object]()

    def forward(self, value: Tensor) -> Tensor:
        return value * self.weight

    def input_grad(self, value: Tensor, gradient: Tensor) -> Tensor:
        self.seen.append(("I", value.dtype, self.weight.dtype))
        return gradient * self.weight

    def weight_grad(self, value: Tensor, gradient: Tensor) -> tuple[Tensor]:
        self.seen.append(("W", gradient.dtype, self.weight.dtype))
        return ((value * gradient).sum(0),)


def test_weight_gradients_of_half_precision_are_deferred() -> None:
    """As they are in single precision: W computes them, from what I has left, with the copies."""
    program = zb_h1(devices=2, microbatches=2)
    stages: list[nn.Module] = [nn.Sequential(nn.Linear(WIDTH, WIDTH), Scaled()) for _ in range(2)]
    assert differences(stages, program, batches(4, 1), precision="bf16") == []
    half = torch.bfloat16
    assert stages[1][1].seen.count(("W", half, half)) == 2  # type: ignore[index]
    assert stages[1][1].seen.count(("I", half, half)) == 2  # type: ignore[index]


# compiled stages


@pytest.mark.parametrize("precision", [None, *PRECISIONS])
def test_compiled_stages_compute_what_they_do_without(precision: Any) -> None:
    """Whole backwards and split ones: the I of a compiled stage computes all, its W adds it."""

    def made() -> list[nn.Module]:
        torch.manual_seed(0)
        return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2)]

    compiled: list[Any] = [torch.compile(stage, backend="aot_eager") for stage in made()]
    for program in (zb_h1(devices=2, microbatches=4), recompute(gpipe(devices=2, microbatches=2))):
        copies, data = made(), batches(8, 2)
        for stage, plain in zip(compiled, copies, strict=True):
            plain.load_state_dict(stage._orig_mod.state_dict())
        found = differences(compiled, program, data, copies=copies, precision=precision)
        assert found == []


# checkpoints inside of a stage


class Checkpointed(nn.Module):
    """Uses a layer in two checkpoints and once without, and drops some values."""

    def __init__(self, *, is_reentrant: bool) -> None:
        super().__init__()
        self.line, self.norm, self.drop = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Dropout()
        self.is_reentrant = is_reentrant

    def forward(self, value: Tensor) -> Tensor:
        for _ in range(2):
            value = checkpoint(self.inner, value, use_reentrant=self.is_reentrant)
        out: Tensor = self.line(value)
        return out

    def inner(self, value: Tensor) -> Tensor:
        out: Tensor = self.drop(self.norm(self.line(value))).relu()
        return out


class Unchecked(Checkpointed):
    """The same without checkpoints."""

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.line(self.inner(self.inner(value)))
        return out


def checkpointed(make: Callable[[], nn.Module]) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(WIDTH, WIDTH), make(), make()]


@pytest.mark.parametrize("precision", [None, *PRECISIONS])
@pytest.mark.parametrize("is_reentrant", [False, True])
def test_checkpoints_beside_recomputation(precision: Any, is_reentrant: bool) -> None:
    """Equal to the reference with checkpoints; without any, too, unless they add in two types."""
    split_backward = zb_h1(devices=3, microbatches=3)
    stashing = pipedream(devices=3, microbatches=1, updates=8)
    for program in (split_backward, recompute(split_backward), stashing):
        stages = checkpointed(lambda: Checkpointed(is_reentrant=is_reentrant))
        data = batches(7, 2)
        assert differences(stages, program, data, precision=precision) == [], program.name
        if not is_reentrant:
            stages = checkpointed(lambda: Checkpointed(is_reentrant=False))
            copies = checkpointed(lambda: Unchecked(is_reentrant=False))
            found = differences(stages, program, data, copies=copies, precision=precision)
            assert found == [], program.name
