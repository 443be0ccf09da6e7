"""The reference is plain torch: loops as people write them, with the weights that a method names.

What pipelines are compared with elsewhere is compared here with loops of a few lines.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

from tests.runtime.asynchrony import Case, cases
from tests.runtime.models import MODELS, WIDTH, adam, batches, is_same, linear, squared
from tests.runtime.test_branches import GRAPHS, modules
from tests.verify import programs
from weft.errors import InputError, NonfiniteError
from weft.ir.actions import Action
from weft.ir.kinds import Kind
from weft.ir.lanes import Period
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.lower import split as split_backward
from weft.runtime import Reference, Scale, Staleness
from weft.runtime.reference import (
    Method,
    always,
    method_of,
    order_of,
    pipedream_2bw,
    synchronous,
    versions_of,
)
from weft.schedules import chimera, gpipe, one_f_one_b, zb_h1

Grads = list[Tensor]


def momentum(named: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([weight for _, weight in named], lr=0.1, momentum=0.9)


def gradients(
    model: nn.Module, batch: Tensor, target: Tensor, count: int, scale: float = 1.0
) -> Iterator[Grads]:
    """Those of each microbatch, by autograd."""
    for part, wanted in zip(batch.chunk(count), target.chunk(count), strict=True):
        loss = squared(model(part), wanted) * (1 / count)
        yield [*torch.autograd.grad(loss * scale, [*model.parameters()])]


def summed(parts: Sequence[Grads]) -> Grads:
    """One after the other."""
    total = parts[0]
    for part in parts[1:]:
        total = [one + other for one, other in zip(total, part, strict=True)]
    return total


class Stale:
    """A loop with weights that are some updates old: a copy of the model for each version."""

    def __init__(self, model: nn.Module, version: Callable[[int], int], pipes: Sequence[Any]):
        self._model, self._version, self._pipes = model, version, pipes
        self._optimizer = momentum(model.named_parameters())
        self._copies = [copy.deepcopy(model)]
        self._piled: list[Grads | None] = [None] * len(pipes)

    def step(self, batch: Tensor, target: Tensor, *, update: bool = True) -> None:
        old = self._copies[self._version(len(self._copies) - 1)]
        count = sum(map(len, self._pipes))
        found = [*gradients(old, batch, target, count)]
        for pipe, order in enumerate(self._pipes):
            before = self._piled[pipe]
            mine = [found[microbatch] for microbatch in order]
            self._piled[pipe] = summed(mine if before is None else [before, *mine])
        if update:
            total = summed([part for part in self._piled if part is not None])
            for weight, grad in zip(self._model.parameters(), total, strict=True):
                weight.grad = grad
            self._optimizer.step()
            self._piled = [None] * len(self._pipes)
        self._copies.append(copy.deepcopy(self._model))


def is_equal(stages: Sequence[nn.Module], model: nn.Module) -> bool:
    mine = [weight for stage in stages for weight in stage.parameters()]
    return all(torch.equal(*pair) for pair in zip(mine, model.parameters(), strict=True))


def both(count: int = 2) -> tuple[list[nn.Module], nn.Sequential]:
    stages = linear(count)
    return stages, copy.deepcopy(nn.Sequential(*stages))


# versions and orders


def one_before(update: int) -> int:
    return max(0, update - 1)


def two_ways(step: int = 6) -> Program:
    """Two pipes on two devices, one update stale; weight gradients come newest first."""
    placement = Placement(((0, 1), (1, 0)))

    def of(device: int, update: int, kind: Kind) -> list[Action]:
        return [
            Action(stage, kind, update * step + index, version=one_before(update))
            for pipe, stage in placement.held[device]
            for index in range(pipe, step, 2)
        ]

    def back(device: int, update: int) -> list[Action]:
        later = reversed(of(device, update, Kind.W))
        made = [Action(stage, Kind.UPDATE, version=update) for _, stage in placement.held[device]]
        return [*of(device, update, Kind.I), *later, *made]

    def lane(device: int) -> list[list[Action]]:
        first = [*of(device, 0, Kind.F), *of(device, 1, Kind.F), *back(device, 0)]
        return [first, [*of(device, 2, Kind.F), *back(device, 1)], back(device, 2)]

    lanes = [lane(device) for device in range(2)]
    prologue, body = (tuple(len(parts[place]) for parts in lanes) for place in range(2))
    return Program.build(
        "two ways",
        placement,
        [[action for part in parts for action in part] for parts in lanes],
        microbatches=step,
        pipe_of=[index % 2 for index in range(step)],
        period=Period(prologue, body, microbatches=step),
    )


def test_several_pipes_and_split_backwards_of_an_asynchronous_program() -> None:
    stages, model = both()
    reference = Reference(stages, two_ways(), loss=squared, optimizer=momentum)
    plain = Stale(model, one_before, [(4, 2, 0), (5, 3, 1)])
    other = Stale(copy.deepcopy(model), one_before, [range(6)])
    for batch, target in batches(18, 7):
        reference.step(batch, target)
        plain.step(batch, target)
        other.step(batch, target)
    assert is_equal(stages, model)
    assert not is_equal(stages, other._model), "so that the order can be seen"


def test_spans_of_an_asynchronous_program() -> None:
    """Actions on several microbatches, stale by one update; weight gradients in an order."""
    lane = (
        "0F0..2@0 0I0..2@0 0W1..2@0 0W0@0 0U@0 0F3..5@0 0I3..5@0 0W4..5@0 0W3@0 0U@1"
        " [0F6..8@1 0I6..8@1 0W7..8@1 0W6@1 0U@2]"
    )
    stages, model = both(1)
    program = programs.repeating(lane, microbatches=3)
    reference = Reference(stages, program, loss=squared, optimizer=momentum)
    plain = Stale(model, one_before, [(1, 2, 0)])
    for batch, target in batches(9, 6):
        reference.step(batch, target)
        plain.step(batch, target)
    assert is_equal(stages, model)


@pytest.mark.parametrize("program", [zb_h1, chimera])
def test_a_synchronous_program_is_an_asynchronous_one_with_staleness_0(program: Any) -> None:
    method = method_of(program(devices=2, microbatches=4))
    assert method.is_synchronous
    kept = replace(method, version=lambda update, microbatch, stage: update)
    assert not kept.is_synchronous, "so that older versions are kept, and never asked for"
    make, data, loss = MODELS["tied"]
    found = []
    for one in (method, kept):
        stages = make(2)
        reference = Reference(stages, one, loss=loss, optimizer=adam, clip=0.1, seed=3)
        losses = [reference.step(batch, target) for batch, target in data(11, 3)]
        found.append([*losses, *(w.detach() for stage in stages for w in stage.parameters())])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("case", [c for d in (2, 3) for c in cases(d)], ids=lambda case: case.id)
def test_programs_name_the_versions_of_the_literature(case: Case) -> None:
    """Long after what is listed, too, and with split backwards."""
    for program in (case.program, split_backward(case.program)):
        version, backward = versions_of(program)
        assert (backward is None) == (case.backward is None)
        for update in range(30):
            for stage in range(program.stages):
                for index in range(program.microbatches):
                    place = (update, index, stage)
                    assert version(*place) == case.version(*place)
                    assert backward is None or backward(*place) == update
                order = order_of(program)(update, stage)
                assert sorted(order) == [*range(program.microbatches)]


# gradients that pile up


def test_an_update_that_is_left_out_piles_up_for_the_next() -> None:
    """A step is an update all the same, so that weights are as stale as in any other step."""
    is_updated = [True, False, True, True, False, False, True]
    for version in (synchronous(), pipedream_2bw()):
        for pipes in ([range(4)], [(2, 0), (3, 1)]):
            stages, model = both()
            pipe_of = tuple(int(len(pipes) > 1 and index in pipes[1]) for index in range(4))
            orders = [index for order in pipes for index in order]
            method = Method(version, 4, order=lambda t, s, o=orders: o, pipe_of=pipe_of)  # type: ignore[misc]
            reference = Reference(stages, method, loss=squared, optimizer=momentum)
            plain = Stale(model, lambda t, v=version: v(t, 0, 0), pipes)  # type: ignore[misc]
            for (batch, target), is_one in zip(batches(12, 7), is_updated, strict=True):
                reference.step(batch, target, update=is_one)
                plain.step(batch, target, update=is_one)
                assert is_equal(stages, model)
            assert reference.updates == 7


def test_a_pile_of_other_scales_is_as_if_they_were_one() -> None:
    """Powers of two, so that no bit is lost; the scale grows while gradients wait."""
    found = []
    for scale in (None, Scale(2.0**4, interval=1)):
        stages, _ = both()
        method = Method(pipedream_2bw(), 2)
        reference = Reference(stages, method, loss=squared, optimizer=momentum, scale=scale)
        for step, (batch, target) in enumerate(batches(6, 6)):
            reference.step(batch, target, update=step % 2 == 0)
        assert reference.scale == (2.0**7 if scale else 1)
        found.append([weight.detach() for stage in stages for weight in stage.parameters()])
    assert all(map(torch.equal, *found))


# what does not learn, and what branches


def test_a_frozen_stage_of_an_asynchronous_method() -> None:
    stages, model = both(3)
    for one in (stages[1], model[1]):
        one.requires_grad_(False)
    reference = Reference(stages, Method(pipedream_2bw(), 3), loss=squared, optimizer=momentum)
    learning = nn.ModuleList([model[0], model[2]])

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.learning, self.frozen = learning, [model[1]]

        def forward(self, value: Tensor) -> Tensor:
            out: Tensor = self.learning[1](self.frozen[0](self.learning[0](value)))
            return out

    plain = Stale(Around(), one_before, [range(3)])
    before = copy.deepcopy(stages[1].state_dict())
    for batch, target in batches(9, 5):
        reference.step(batch, target)
        plain.step(batch, target)
    assert is_equal([stages[0], stages[2]], learning)
    assert all(is_same(value, before[name]) for name, value in stages[1].state_dict().items())


@pytest.mark.parametrize("name", GRAPHS)
def test_stage_by_stage_is_one_graph_where_the_weights_are_the_same(name: str) -> None:
    """Branches, and stages that do not learn, recomputed or not."""
    graph, version = GRAPHS[name], pipedream_2bw()
    plain = Method(version, 3, graph=graph)
    some = replace(plain, backward=version, recompute=lambda t, i, s: (t + i + s) % 2 == 0)
    found = []
    for method in (plain, some, replace(some, recompute=always)):
        stages = modules(graph)
        reference = Reference(stages, method, loss=squared, optimizer=adam, clip=0.1)
        losses = [reference.step(batch, target) for batch, target in batches(8, 4)]
        found.append([*losses, *(w.detach() for stage in stages for w in stage.parameters())])
    assert all(map(torch.equal, *found[:2]))
    assert all(map(torch.equal, *found[1:]))


def test_a_recomputed_stage_uses_the_weights_of_its_backward() -> None:
    """From what its forward was given, which older weights have made."""
    stages, model = both()
    method = Method(pipedream_2bw(), 1, backward=synchronous(), recompute=always)
    reference = Reference(stages, method, loss=squared, optimizer=momentum)
    optimizer, versions = momentum(model.named_parameters()), [copy.deepcopy(model)]
    for update, (batch, target) in enumerate(batches(4, 5)):
        loss = reference.step(batch, target)
        old = versions[one_before(update)]
        assert torch.equal(loss, squared(old(batch), target).detach())
        value = old[0](batch).detach().requires_grad_()
        torch.autograd.backward(squared(model[1](value), target))
        torch.autograd.backward(model[0](batch), value.grad)
        optimizer.step()
        optimizer.zero_grad()
        versions.append(copy.deepcopy(model))
    assert is_equal(stages, model)


# precision and scales


@pytest.mark.parametrize("clip", [None, 0.05])
def test_half_precision_of_a_synchronous_program_is_a_loop_with_a_scaler(
    clip: float | None,
) -> None:
    """Weights of float32, a copy of float16, and a scale that halves and doubles."""
    stages, model = both()
    half_precision: Any = {"precision": torch.float16, "scale": Scale(2.0**20, interval=2)}
    program = one_f_one_b(devices=2, microbatches=4)
    reference = Reference(
        stages, program, loss=squared, optimizer=momentum, clip=clip, **half_precision
    )
    optimizer, scale, good, scales = momentum(model.named_parameters()), 2.0**20, 0, set()
    weights = [*model.parameters()]
    for batch, target in batches(8, 14):
        reference.step(batch, target)
        half = copy.deepcopy(model).half()
        parts = gradients(half, batch.half(), target, 4, scale)
        total = summed([[grad.float() for grad in part] for part in parts])
        for weight, grad in zip(weights, total, strict=True):
            weight.grad = grad * (1 / scale)
        norm = nn.utils.clip_grad_norm_(weights, clip or float("inf"), foreach=False)
        good = good + 1 if torch.isfinite(norm) else 0
        if good:
            optimizer.step()
        scale, good = (scale / 2, 0) if not good else (2 * scale, 0) if good == 2 else (scale, good)
        scales.add(scale)
        assert reference.scale == scale
        assert is_equal(stages, model)
    assert len(scales) > 2, "so that it halves and doubles"


def test_bfloat16_of_several_pipes() -> None:
    stages, model = both()
    program = chimera(devices=2, microbatches=4)
    reference = Reference(
        stages, program, loss=squared, optimizer=momentum, precision=torch.bfloat16
    )
    optimizer = momentum(model.named_parameters())
    for batch, target in batches(8, 3):
        reference.step(batch, target)
        rounded = copy.deepcopy(model).bfloat16()
        found = gradients(rounded, batch.bfloat16(), target, 4)
        each = [[grad.float() for grad in part] for part in found]
        orders = [
            [m for m in order_of(program)(0, 0) if program.pipe_of[m] == pipe] for pipe in (0, 1)
        ]
        total = summed([summed([each[m] for m in order]) for order in orders])
        for weight, grad in zip(model.parameters(), total, strict=True):
            weight.grad = grad
        optimizer.step()
    assert is_equal(stages, model)


# schedulers, and what is not finite


def halving(optimizer: torch.optim.Optimizer) -> StepLR:
    return StepLR(optimizer, step_size=1, gamma=0.5)


def test_a_scheduler_of_a_synchronous_program_steps_with_its_updates() -> None:
    stages, model = both()
    program = gpipe(devices=2, microbatches=2)
    reference = Reference(stages, program, loss=squared, optimizer=momentum, scheduler=halving)
    optimizer = momentum(model.named_parameters())
    scheduler = halving(optimizer)
    for step, (batch, target) in enumerate(batches(4, 5)):
        reference.step(batch, target, update=step != 1)
        for part, wanted in zip(batch.chunk(2), target.chunk(2), strict=True):
            torch.autograd.backward(squared(model(part), wanted) * 0.5)
        if step != 1:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    assert is_equal(stages, model)


def broken(steps: int, at: int) -> list[tuple[Tensor, Tensor]]:
    made = batches(4, steps)
    made[at][0].fill_(float("nan"))
    return made


@pytest.mark.parametrize("clip", [None, 0.1])
def test_a_loss_that_is_not_finite_stops_or_is_left_out(clip: float | None) -> None:
    """Either way weights are as if that batch had not been there."""
    program = gpipe(devices=2, microbatches=2)
    data, found = broken(4, at=2), []
    for nonfinite, mine in (("skip", data), ("stop", data), ("stop", [*data[:2], data[3]])):
        stages, _ = both()
        settings: dict[str, Any] = {"optimizer": adam, "clip": clip, "nonfinite": nonfinite}
        reference = Reference(stages, program, loss=squared, **settings)
        for step, (batch, target) in enumerate(mine):
            if nonfinite == "stop" and step == 2 and mine is data:
                with pytest.raises(NonfiniteError, match=r"loss of update 2 is nan.*'skip'"):
                    reference.step(batch, target)
            else:
                reference.step(batch, target)
        found.append([weight.detach() for stage in stages for weight in stage.parameters()])
    assert all(map(torch.equal, *found[:2]))
    assert all(map(torch.equal, *found[1:]))


def test_a_pile_with_a_loss_that_is_not_finite_is_left_out_whole() -> None:
    stages, model = both()
    program = gpipe(devices=2, microbatches=2)
    reference = Reference(stages, program, loss=squared, optimizer=adam, nonfinite="skip")
    for step, (batch, target) in enumerate(broken(3, at=0)):
        reference.step(batch, target, update=step > 0)
        assert is_equal(stages, model) == (step < 2)


def test_gradients_of_a_user_are_given_back_where_an_update_is_left_out() -> None:
    stages, _ = both()
    (good, target), (bad, _) = broken(2, at=1)
    program = gpipe(devices=2, microbatches=2)
    reference = Reference(stages, program, loss=squared, nonfinite="skip")
    reference.step(good, target)
    before = [weight.grad.clone() for stage in stages for weight in stage.parameters()]  # type: ignore[union-attr]
    reference.step(bad, target)
    after = [weight.grad for stage in stages for weight in stage.parameters()]
    assert all(is_same(*pair) for pair in zip(before, after, strict=True))


def test_what_is_not_finite_may_be_ignored() -> None:
    stages, _ = both()
    program = gpipe(devices=2, microbatches=2)
    reference = Reference(stages, program, loss=squared, optimizer=adam, nonfinite="ignore")
    for batch, target in broken(1, at=0):
        reference.step(batch, target)
    assert all(weight.isnan().all() for stage in stages for weight in stage.parameters())


# modules as people write them


def test_hooks_of_a_weight_see_what_they_see_in_plain_torch() -> None:
    """The gradient of a microbatch, then the sum: a mask of it, and half of it, stay."""

    def watched(module: nn.Module) -> list[Tensor]:
        seen: list[Tensor] = []
        weight: Any = module.get_parameter("weight")
        weight.register_hook(lambda grad: 0.5 * grad)

        def after(one: Tensor) -> None:
            assert one.grad is not None
            one.grad[0] *= 0.5
            seen.append(one.grad.clone())

        weight.register_post_accumulate_grad_hook(after)
        return seen

    method = Method(synchronous(), 3)
    for precision in (None, torch.float32):  # the weight itself, and a copy
        stages, model = both()
        seen, wanted = watched(stages[0]), watched(model[0])
        reference = Reference(stages, method, loss=squared, optimizer=momentum, precision=precision)
        optimizer = momentum(model.named_parameters())
        for batch, target in batches(6, 2):
            reference.step(batch, target)
            for part, aim in zip(batch.chunk(3), target.chunk(3), strict=True):
                torch.autograd.backward(squared(model(part), aim) * (1 / 3))
            optimizer.step()
            optimizer.zero_grad()
        assert is_equal(stages, model)
        assert len(seen) == 6
        assert all(map(torch.equal, seen, wanted))


def test_a_stage_that_begins_to_learn_gets_an_optimizer_then() -> None:
    stages, model = both()
    for one in (stages[0], model[0]):
        one.requires_grad_(False)
    program = gpipe(devices=2, microbatches=1)
    reference = Reference(stages, program, loss=squared, optimizer=momentum)
    optimizer = momentum(model.named_parameters())
    for step, (batch, target) in enumerate(batches(2, 4)):
        for one in (stages[0], model[0]) if step == 2 else ():
            one.requires_grad_(True)
        reference.step(batch, target)
        torch.autograd.backward(squared(model(batch), target))
        optimizer.step()
        optimizer.zero_grad()
    assert is_equal(stages, model)


# what is refused


def test_what_a_method_cannot_have_is_refused() -> None:
    stages = linear(2)
    program = gpipe(devices=2, microbatches=2)
    for stale in (Staleness(predict=True), Staleness(warmup=1), Staleness(temper=2)):
        with pytest.raises(InputError, match=r"all weights are the newest.*asynchronous"):
            Reference(stages, program, loss=squared, optimizer=adam, staleness=stale)
    with pytest.raises(InputError, match="updates by itself: give optimizer="):
        Reference(stages, Method(pipedream_2bw(), 2), loss=squared)
    with pytest.raises(InputError, match="3 modules for a program of 2 stages"):
        Reference(linear(3), program, loss=squared)
    reference = Reference(stages, Method(lambda t, i, s: t + 1, 1), loss=squared, optimizer=adam)
    with pytest.raises(
        InputError, match=r"update 0 asks for version 1 of stage 0.* \[0\] are kept"
    ):
        reference.step(torch.ones(1, WIDTH), torch.ones(1, WIDTH))
