"""Every synchronous program gives the reference's losses and weights, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.exactness import differences
from tests.runtime.models import WIDTH, Norm, batches, is_same, layers, squared
from tests.runtime.programs import newest_first
from weft.ir.program import Program
from weft.lower import recompute, recompute_early
from weft.lower import split as split_backward
from weft.runtime import Reference, split
from weft.schedules import REGISTRY, Schedule, Shape, gpipe, one_f_one_b, zb_h1

SYNCHRONOUS = [schedule for schedule in REGISTRY if not schedule.is_asynchronous]


def assert_equal(
    stages: Sequence[nn.Module],
    program: Program,
    data: list[tuple[Tensor, Tensor]],
    **settings: object,
) -> None:
    assert differences(stages, program, data, **settings) == []


def program_of(schedule: Schedule, devices: int, variant: str) -> Program:
    least, most = schedule.stages_per_device
    microbatches = 4 * devices if variant == "doubling" else 2 * devices
    return schedule.program(
        Shape(
            devices=devices,
            microbatches=microbatches,
            stages_per_device=least if most else 2,
            variant=variant,
        )
    )


@pytest.mark.parametrize(("devices", "dtype"), [(2, torch.float64), (4, torch.float32)], ids=str)
@pytest.mark.parametrize("schedule", SYNCHRONOUS, ids=lambda schedule: schedule.name)
def test_every_schedule_is_exact(schedule: Schedule, devices: int, dtype: torch.dtype) -> None:
    """With dropout, clipping and a short last microbatch."""
    for variant in ("", *schedule.variants):
        program = program_of(schedule, devices, variant)
        whole = layers(program.stages, dtype)
        data = batches(program.microbatches * 3 - 1, 2, dtype)
        assert_equal(split(whole, stages=program.stages), program, data, clip=0.5)


def test_where_the_order_is_plain_the_reference_is_plain_backward() -> None:
    """One pipe, B in the order of microbatches: exactly loss.backward()."""
    program = gpipe(devices=2, microbatches=4)
    whole = layers(2)
    plain = copy.deepcopy(whole)
    reference = Reference(split(whole, stages=2), program, loss=squared, seed=3)
    for module in (*plain.modules(), *whole.modules()):
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    ((batch, target),) = batches(8, 1)
    reference.step(batch, target)
    for part, wanted in zip(torch.split(batch, 2), torch.split(target, 2), strict=True):
        torch.autograd.backward(squared(plain(part), wanted) * 0.25)
    for mine, theirs in zip(whole.parameters(), plain.parameters(), strict=True):
        assert is_same(mine.grad, theirs.grad)


def test_another_order_would_differ() -> None:
    """The negative control: gradients added in another order are not the same bits."""
    whole = layers(2)
    data = batches(64, 4)
    first = Reference(split(whole, stages=2), gpipe(devices=2, microbatches=16), loss=squared)
    other_layers = copy.deepcopy(whole)
    program = gpipe(devices=2, microbatches=16)
    second = Reference(split(other_layers, stages=2), newest_first(program), loss=squared)
    for batch, target in data:
        first.step(batch, target)
        second.step(batch, target)
    grads = zip(whole.parameters(), other_layers.parameters(), strict=True)
    assert not all(is_same(mine.grad, theirs.grad) for mine, theirs in grads)


@pytest.mark.parametrize("change", [recompute, recompute_early, split_backward])
def test_passes_change_no_bit(change: object) -> None:
    program = change(one_f_one_b(devices=4, microbatches=8))  # type: ignore[operator]
    assert_equal(split(layers(4), stages=4), program, batches(23, 3), clip=0.5)


def test_recomputation_touches_no_buffer() -> None:
    torch.manual_seed(0)
    stages = [Norm() for _ in range(2)]
    for program in (
        gpipe(devices=2, microbatches=4, variant="recompute"),
        zb_h1(devices=2, microbatches=4),
    ):
        assert_equal([copy.deepcopy(s) for s in stages], program, batches(16, 2))


def test_frozen_parameters_stay() -> None:
    whole = layers(4)
    whole[1].requires_grad_(False)
    before = copy.deepcopy(whole[1].state_dict())
    for program in (one_f_one_b(devices=4, microbatches=8), zb_h1(devices=4, microbatches=8)):
        assert_equal(split(whole, stages=4), program, batches(16, 2))
    assert all(torch.equal(before[name], value) for name, value in whole[1].state_dict().items())


def test_weights_of_microbatches() -> None:
    program = one_f_one_b(devices=2, microbatches=4)
    weights = [0.1, 0.2, 0.3, 0.4]
    assert_equal(split(layers(2), stages=2), program, batches(8, 2), weights=weights)


class Reader(nn.Module):
    """Embeds and reads out by one weight, which a split backward meets twice."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.head(self.line(nn.functional.linear(value, self.head.weight)))
        return out


def test_a_deferred_weight_that_is_used_elsewhere_too() -> None:
    torch.manual_seed(0)
    stages = [Reader(), Reader()]
    assert_equal(stages, zb_h1(devices=2, microbatches=4), batches(16, 2))


class Shift(nn.Module):
    """A layer that says itself how its backward divides."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.asked = nn.Parameter(torch.zeros(WIDTH)), 0

    def forward(self, value: Tensor) -> Tensor:
        return value + self.shift

    def input_grad(self, value: Tensor, gradient: Tensor) -> Tensor:
        return gradient

    def weight_grad(self, value: Tensor, gradient: Tensor) -> tuple[Tensor]:
        self.asked += 1
        return (gradient.sum(0),)


def test_a_layer_may_divide_its_own_backward() -> None:
    torch.manual_seed(0)
    layers = [Shift(), Shift()]
    stages = [nn.Sequential(nn.Linear(WIDTH, WIDTH), layer) for layer in layers]
    assert_equal(stages, zb_h1(devices=2, microbatches=4), batches(16, 2))
    assert [layer.asked for layer in layers] == [8, 8]
