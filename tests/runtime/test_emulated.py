"""An emulated expert group: one process is all ranks, and computes what the whole model does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.models import squared
from tests.runtime.test_expert_ranks import batch_of, blocks_of
from weft import lower
from weft.errors import InputError
from weft.runtime import Reference
from weft.runtime.experts import ALONE, Emulated
from weft.schedules import REGISTRY

ROWS = 2


def undropped(stages: list[nn.Module]) -> list[nn.Module]:
    for module in (module for stage in stages for module in stage.modules()):
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return [stage.double() for stage in stages]


@pytest.mark.parametrize("ranks", [2, 4])
def test_gradients_are_those_of_the_whole_model(ranks: int) -> None:
    """Of plain torch, up to the order in which it sums; routers compute in single precision."""
    program = lower.replicated(
        REGISTRY["1f1b"](devices=2, microbatches=2), ranks, expert_ranks=ranks
    )
    whole, stages = undropped(blocks_of(2, ALONE)), undropped(blocks_of(2, Emulated(ranks)))
    batch, target = (one.double() for one in batch_of(0, program.microbatches * ROWS))
    loss = Reference(stages, program, loss=squared).step(batch, target)
    plain = squared(nn.Sequential(*whole)(batch), target)
    torch.autograd.backward(plain)
    assert torch.allclose(loss, plain, atol=1e-6)
    for stage, other in zip(stages, whole, strict=True):
        for one, two in zip(stage.parameters(), other.parameters(), strict=True):
            assert one.grad is not None
            assert two.grad is not None
            assert two.grad.abs().max() > 1e-4
            assert torch.allclose(one.grad, two.grad, atol=1e-6)


def test_rows_go_to_their_ranks_and_gradients_back() -> None:
    """Rank r sends r + 1 rows to each rank, and none to itself."""
    group = Emulated(3)
    given = [torch.full((2 * (rank + 1), 1), float(rank), requires_grad=True) for rank in range(3)]

    def call(rank: int) -> Tensor:
        sent = torch.tensor([0 if to == rank else rank + 1 for to in range(3)])
        received = group.counts(sent)
        assert group.rank == rank
        return group.exchange(given[rank], sent.tolist(), received.tolist()) * (rank + 1)

    found = group.run([lambda rank=rank: call(rank) for rank in range(3)])  # type: ignore[misc]
    assert [one.flatten().tolist() for one in found] == [[1, 1, 2, 2, 2], [0, 4, 4, 4], [0, 3, 3]]
    torch.autograd.backward([one.sum() for one in found])
    grads = [one.grad.flatten().tolist() for one in given if one.grad is not None]
    assert grads == [[2, 3], [1, 1, 3, 3], [1, 1, 1, 2, 2, 2]]


def test_each_rank_draws_as_if_alone() -> None:
    group = Emulated(2)

    def call(seed: int) -> list[float]:
        torch.manual_seed(seed)
        first = torch.rand(1)
        group.exchange(first, [1, 0], [1, 0])
        return [float(first), float(torch.rand(1))]

    before = torch.get_rng_state()
    found = group.run([lambda: call(1), lambda: call(2)])
    assert torch.equal(torch.get_rng_state(), before)
    for seed, drawn in zip((1, 2), found, strict=True):
        torch.manual_seed(seed)
        assert drawn == [float(torch.rand(1)), float(torch.rand(1))]


def test_all_ranks_compute_under_the_autocast_of_the_step() -> None:
    program = lower.replicated(REGISTRY["gpipe"](devices=1, microbatches=1), 2, expert_ranks=2)
    stages, types = blocks_of(1, Emulated(2)), set[torch.dtype]()
    shared = stages[0].get_submodule("experts.shared")
    shared.register_forward_hook(lambda *given: types.add(given[2].dtype))
    reference = Reference(stages, program, loss=squared)
    with torch.autocast("cpu", torch.bfloat16):
        reference.step(*batch_of(0, 2 * ROWS))
    assert types == {torch.bfloat16}


def exchanging(group: Emulated, times: int) -> Callable[[], None]:
    def call() -> None:
        for _ in range(times):
            group.exchange(torch.ones(2), [1, 1], [1, 1])
        if times == 3:
            raise ValueError("out of luck")

    return call


@pytest.mark.parametrize(
    ("times", "error", "says"),
    [
        ((1, 2), InputError, "do not exchange tokens equally often"),
        ((2, 1), InputError, "do not exchange tokens equally often"),
        ((3, 4), ValueError, "out of luck"),
        ((4, 3), ValueError, "out of luck"),
    ],
)
def test_what_goes_wrong_on_a_rank_ends_all(
    times: tuple[int, int], error: type[Exception], says: str
) -> None:
    group = Emulated(2)
    with pytest.raises(error, match=says):
        group.run([exchanging(group, one) for one in times])


def test_models_that_do_not_fit_the_program_are_refused() -> None:
    program = REGISTRY["gpipe"](devices=2, microbatches=2)
    for ranks, says in ((1, "emulates 2 expert ranks, and the program has 1"), (4, "has 4")):
        wide = lower.replicated(program, ranks, expert_ranks=ranks)
        with pytest.raises(InputError, match=says):
            Reference(blocks_of(2, Emulated(2)), wide, loss=squared)
    twice = lower.replicated(program, 2, expert_ranks=2)
    two = [*blocks_of(1, Emulated(2)), *blocks_of(1, Emulated(2))]
    with pytest.raises(InputError, match="several emulated expert groups"):
        Reference(two, twice, loss=squared)
    with pytest.raises(InputError, match="leave whole_batch= out"):
        Reference(blocks_of(2, Emulated(2)), twice, loss=squared, whole_batch=True)
    with pytest.raises(InputError, match="exchanged outside of a forward"):
        blocks_of(1, Emulated(2))[0](torch.zeros(1, 3, 8))
