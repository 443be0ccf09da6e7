"""What torch.distributed.pipelining 2.13 gets wrong, each tried here.

Every docstring says what torch does.
"""

from __future__ import annotations

import copy
import re

import torch
import torch.distributed as dist
from torch import nn

from tests.notation.examples import SWAPPED
from tests.runtime.exactness import differences, differences_of
from tests.runtime.models import (
    WIDTH,
    Data,
    Faulty,
    Norm,
    batches,
    is_same,
    layers,
    linear,
    squared,
)
from tests.runtime.programs import crossed, newest_first
from tests.runtime.ranks import over_transports, run
from weft.errors import WeftError
from weft.ir.program import Program
from weft.notation import from_torch_csv
from weft.runtime import Pipeline, split
from weft.schedules import chimera, dualpipev, gpipe, interleaved_zb1p, one_f_one_b, zbv

# messages


def deferred() -> Program:
    """The order of torch's ZBV with `defer_pp_recv=True`, without its mismatched messages."""
    return from_torch_csv(re.sub(r"\d(SEND|RECV|REDUCE)_\w+,?", "", SWAPPED).replace(",\n", "\n"))


def train_crossing(transport: str) -> list[list[str]]:
    """In each rank: what differs from the reference, by program."""
    shape = {"devices": 2, "microbatches": 4}
    programs = [
        deferred(),
        crossed(),
        zbv(**shape),
        dualpipev(**shape),
        interleaved_zb1p(stages_per_device=2, **shape),
    ]
    return [differences_of("layers", program, transport=transport) for program in programs]


def test_messages_that_cross_are_not_swapped() -> None:
    """All messages have the same tag; gradients are wrong by up to a factor of 20."""
    assert over_transports(2, train_crossing) == [[[[]] * 5] * 2] * 2


# gradients that wait for their update


def test_evaluation_between_step_and_update_touches_nothing() -> None:
    """Live gradients are divided by the number of microbatches."""
    torch.manual_seed(0)
    stages = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.5))
        for _ in range(2)
    ]
    pipeline = Pipeline(stages, one_f_one_b(devices=2, microbatches=4), loss=squared)
    (batch, target), (other, wanted) = batches(16, 2)
    pipeline.step(batch, target, update=False)
    grads = [p.grad.clone() for stage in stages for p in stage.parameters() if p.grad is not None]
    state = [copy.deepcopy(stage.state_dict()) for stage in stages]
    random = torch.get_rng_state()
    losses = [pipeline.evaluate(other, wanted).loss for _ in range(2)]
    assert torch.equal(losses[0], losses[1])
    after = [p.grad for stage in stages for p in stage.parameters()]
    assert all(is_same(mine, theirs) for mine, theirs in zip(after, grads, strict=True))
    for stage, before in zip(stages, state, strict=True):
        assert all(torch.equal(before[name], v) for name, v in stage.state_dict().items())
        assert stage.training
    assert torch.equal(random, torch.get_rng_state())


def whole_numbers(stages: list[nn.Module]) -> Data:
    """Weights and data with which all sums are exact in any order."""
    for stage in stages:
        for weight in stage.parameters():
            nn.init.ones_(weight)
    return [(torch.arange(8 * WIDTH).view(8, WIDTH) % 3.0, torch.zeros(8, WIDTH))]


def test_two_batches_without_an_update_give_twice_the_gradient() -> None:
    """1.25 g in place of 2 g."""
    stages = linear(2)
    ((batch, target),) = whole_numbers(stages)
    program = one_f_one_b(devices=2, microbatches=4)
    pipeline = Pipeline(stages, program, loss=lambda out, _: out.sum())
    weights = [weight for stage in stages for weight in stage.parameters()]
    pipeline.step(batch, target, update=False)
    once = [weight.grad.clone() for weight in weights if weight.grad is not None]
    pipeline.step(batch, target, update=False)
    for weight, grad in zip(weights, once, strict=True):
        assert is_same(weight.grad, 2 * grad)


# orders and shapes


def test_microbatch_1_may_run_before_0() -> None:
    """Losses are looked up by arrival: gradients are wrong by a factor of 2."""
    program = newest_first(gpipe(devices=2, microbatches=2))
    assert differences_of("layers", program) == []


def test_the_size_of_a_batch_may_change() -> None:
    """Shapes are those of the first step: anything else is an error."""
    assert over_transports(2, train_sizes) == [[[]] * 2] * 2


def train_sizes(transport: str) -> list[str]:
    """In each rank: larger and smaller batches, each with a short last microbatch."""
    program = one_f_one_b(devices=2, microbatches=4)
    data = [batches(size, 1)[0] for size in (7, 15, 8, 4, 23)]
    stages = split(layers(2), stages=2)
    return differences(stages, program, data, transport=transport)


def test_an_uneven_batch_is_cut_with_a_short_last_microbatch() -> None:
    """An error."""
    program = gpipe(devices=2, microbatches=4)
    assert differences(linear(2), program, batches(11, 2)) == []


# what the modules are


def test_start_up_touches_no_statistics() -> None:
    """Shapes are found by running on memory as it was found: running_mean is 1e30 afterwards."""
    torch.manual_seed(0)
    stages = [Norm(), Norm()]
    copies = copy.deepcopy(stages)
    pipeline = Pipeline(stages, gpipe(devices=2, microbatches=4), loss=squared)
    ((batch, target),) = batches(16, 1)
    pipeline.evaluate(batch, target)
    for stage, as_made in zip(stages, copies, strict=True):
        pairs = zip(stage.buffers(), as_made.buffers(), strict=True)
        assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


def test_statistics_see_every_microbatch_once() -> None:
    """Five batches tracked after four microbatches."""
    torch.manual_seed(0)
    stages = [Norm(), Norm()]
    program = gpipe(devices=2, microbatches=4)
    assert differences(stages, program, batches(16, 2)) == []
    assert [int(stage.norm.num_batches_tracked or 0) for stage in stages] == [8, 8]


def test_shared_weights_stay_one() -> None:
    """Copied, never summed: 57 % off, without a warning."""
    for program in (gpipe(devices=2, microbatches=4), chimera(devices=2, microbatches=4)):
        assert differences_of("tied", program) == []


def test_a_stage_after_the_first_may_look_up_received_ids() -> None:
    """Start-up looks up what happens to lie in memory: IndexError."""
    assert differences_of("reminded", gpipe(devices=2, microbatches=4)) == []


# failure


def fail_on_one() -> str:
    """In each rank: what the step says; device 1 fails in its third forward."""
    pipeline = Pipeline([*linear(1), Faulty()], gpipe(devices=2, microbatches=4), loss=squared)
    ((batch, target),) = batches(4, 1)
    try:
        pipeline.step(batch, target)
    except WeftError as error:
        return str(error)
    return f"nothing on {dist.get_rank()}"


def test_an_exception_on_one_rank_ends_the_other() -> None:
    """The others wait for the time limit of the process group: 30 minutes."""
    first, second = run(2, fail_on_one)
    assert second == "device 1 failed at 1F2: out of luck"
    assert first == f"{second}; device 0 was waiting for 1B0 of device 1"
