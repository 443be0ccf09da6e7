"""Between the last backward and the next step: what is summed, clipped, stepped and cleared."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from tests.runtime.exactness import differences
from tests.runtime.models import (
    WIDTH,
    batches,
    first_squared,
    forked,
    is_same,
    layers,
    plain_descent,
    squared,
)
from weft.errors import InputError, WeftError
from weft.lower import replicated
from weft.runtime import Pipeline, Reference, split
from weft.schedules import chimera, gpipe, one_f_one_b


class Still(nn.Module):
    """A weight whose gradient is zero and one that has none, beside a layer that learns."""

    def __init__(self) -> None:
        super().__init__()
        self.still, self.unused = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
        self.line = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.line(value) + 0 * self.still
        return out


class Mixed(nn.Module):
    """A layer in half precision, and a norm in single."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.norm = nn.Linear(WIDTH, WIDTH).bfloat16(), nn.LayerNorm(WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.norm(self.line(value.bfloat16()).float())
        return out


def test_the_norm_counts_gradients_of_zero() -> None:
    """They change no sum, but which of the others are added first, and so its last bits."""
    torch.manual_seed(0)
    stages = [nn.Sequential(*(Still() for _ in range(9))) for _ in range(2)]
    program = gpipe(devices=2, microbatches=2)
    assert differences(stages, program, batches(16, 8), clip=1e-3) == []


def test_a_weight_that_nothing_uses_has_no_gradient_on_two_pipes_either() -> None:
    """AdamW shrinks every weight that has one, be it zero."""
    program = chimera(devices=2, microbatches=4)
    assert differences(forked(2), program, batches(8, 2), loss=first_squared) == []


def test_batches_pile_up_as_in_the_reference() -> None:
    """Also where each pipe keeps its own sum until the update."""
    data = batches(11, 6)
    for program in (one_f_one_b(devices=2, microbatches=4), chimera(devices=2, microbatches=4)):
        stages = split(layers(2), stages=2)
        copies = copy.deepcopy(stages)
        pipeline = Pipeline(stages, program, loss=squared, optimizer=plain_descent, clip=0.5)
        reference = Reference(copies, program, loss=squared, optimizer=plain_descent, clip=0.5)
        for step, (batch, target) in enumerate(data):
            pipeline.step(batch, target, update=step % 3 == 2)
            reference.step(batch, target, update=step % 3 == 2)
        for (_, index), module in pipeline.modules.items():
            pairs = zip(module.parameters(), copies[index].parameters(), strict=True)
            assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


@pytest.mark.parametrize("scale", [None, 1000.0])
def test_weights_of_several_types_are_summed_each_in_its_own(scale: float | None) -> None:
    """As is a sum of what a scale that is no power of two has enlarged: divided before."""
    torch.manual_seed(0)
    stages = [Mixed() for _ in range(2)]
    program = replicated(one_f_one_b(devices=2, microbatches=2), 4)
    settings = {"optimizer": plain_descent, "scale": scale}
    assert differences(stages, program, batches(24, 3), **settings) == []


class Quantized(nn.Module):
    """A table of whole numbers that never learns, beside a layer that does."""

    def __init__(self) -> None:
        super().__init__()
        table = torch.randint(-3, 4, (WIDTH, WIDTH), dtype=torch.int8)
        self.table, self.line = nn.Parameter(table, requires_grad=False), nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.line(value @ self.table.float())
        return out


def test_weights_that_are_whole_numbers_have_copies() -> None:
    torch.manual_seed(0)
    program = replicated(one_f_one_b(devices=2, microbatches=2), 3)
    assert differences([Quantized(), Quantized()], program, batches(12, 2), clip=0.5) == []


def _no_optimizer(_: Any) -> Any:
    return None


def _of_all_weights(_: Any) -> torch.optim.Optimizer:
    return plain_descent([("", weight) for stage in STAGES for weight in stage.parameters()])


def _with_closure(named: Any) -> torch.optim.Optimizer:
    return torch.optim.LBFGS([weight for _, weight in named])


STAGES = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({"optimizer": _no_optimizer}, "gives a NoneType, no optimizer"),
    "other weights": ({"optimizer": _of_all_weights}, "a SGD of weights that it was not called"),
    "one that is made": (
        {"optimizer": plain_descent([("", nn.Parameter(torch.ones(1)))])},
        "is a SGD, and has",
    ),
    "a scheduler that is made": (
        {"optimizer": plain_descent, "scheduler": 3},
        "scheduler= is a int, and has to be a function",
    ),
    "a closure": ({"optimizer": _with_closure}, r"LBFGS.step\(\) wants closure"),
    "a metric": (
        {"optimizer": plain_descent, "scheduler": ReduceLROnPlateau},
        r"ReduceLROnPlateau.step\(\) wants metrics",
    ),
}


@pytest.mark.parametrize("kind", [Pipeline, Reference])
@pytest.mark.parametrize("case", UNUSABLE)
def test_what_no_update_could_use_is_refused(case: str, kind: Any) -> None:
    settings, match = UNUSABLE[case]
    with pytest.raises(InputError, match=match):
        kind(STAGES, gpipe(devices=2, microbatches=2), loss=squared, **settings)


@pytest.mark.parametrize("kind", [Pipeline, Reference])
@pytest.mark.parametrize("given", [gpipe, "gpipe"])
def test_what_is_no_program_is_refused(given: Any, kind: Any) -> None:
    with pytest.raises(InputError, match=r"is no program; a schedule makes one of a shape"):
        kind(STAGES, given, loss=squared)


# a step that fails may be taken again


class Flaky:
    """Fails at one of its calls."""

    def __init__(self, fails_at: int) -> None:
        self._left = fails_at

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        self._left -= 1
        if not self._left:
            raise RuntimeError("out of luck")
        return squared(output, target)


def flaky(fails_at: int, **settings: Any) -> Pipeline:
    program = gpipe(devices=2, microbatches=2)
    stages = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
    return Pipeline(stages, program, loss=Flaky(fails_at), **settings)


def test_a_step_that_failed_is_taken_again_with_an_update() -> None:
    """Though it was taken without one before."""
    ((batch, target),) = batches(4, 1)
    pipeline = flaky(2, optimizer=plain_descent)
    with pytest.raises(WeftError, match="out of luck"):
        pipeline.step(batch, target, update=False)
    before = [w.clone() for m in pipeline.modules.values() for w in m.parameters()]
    pipeline.step(batch, target)
    after = [w for m in pipeline.modules.values() for w in m.parameters()]
    assert not any(map(torch.equal, before, after))


def test_gradients_that_were_lost_with_a_step_are_not_left_out_of_an_update(tmp_path: Path) -> None:
    ((batch, target),) = batches(4, 1)
    pipeline = flaky(4, optimizer=plain_descent)
    pipeline.save(tmp_path / "save")
    pipeline.step(batch, target, update=False)
    with pytest.raises(WeftError, match="out of luck"):
        pipeline.step(batch, target)
    with pytest.raises(WeftError, match=r"gradients that waited .* are lost"):
        pipeline.step(batch, target)
    pipeline.load(tmp_path / "save")
    pipeline.step(batch, target)


def test_what_is_refused_before_a_step_leaves_the_gradients_of_the_user() -> None:
    (batch, target), (wrong, _) = batches(4, 2)
    pipeline = flaky(0)
    pipeline.step(batch, target)
    weights = [w for m in pipeline.modules.values() for w in m.parameters()]
    before = [w.grad for w in weights]
    with pytest.raises(WeftError):
        pipeline.step(wrong[:, :3], target)
    assert all(map(is_same, before, [w.grad for w in weights]))


def test_a_scheduler_steps_once_for_each_update_of_each_stage() -> None:
    pipeline = Pipeline(
        split(layers(2), stages=2),
        gpipe(devices=2, microbatches=4),
        loss=squared,
        optimizer=plain_descent,
        scheduler=lambda optimizer: StepLR(optimizer, step_size=1, gamma=0.5),
    )
    rates = []
    for step, (batch, target) in enumerate(batches(8, 4)):
        pipeline.step(batch, target, update=step != 1)
        rates.append([group["lr"] for made in pipeline.optimizers for group in made.param_groups])
    assert rates == [[0.05] * 2, [0.05] * 2, [0.025] * 2, [0.0125] * 2]
