"""The mixture of experts: what it computes, how it is dealt out, and what a rank has of it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.errors import InputError
from weft.models import moe
from weft.models.moe.blocks import DenseBlock, ExpertBlock
from weft.models.moe.exchange import turned
from weft.models.moe.experts import GroupedLinear
from weft.models.moe.routing import LOADS, dealt_counts
from weft.runtime.experts import ALONE, ExpertGroup, is_apart

EXPERTS, TOP = 4, 2


class Rank:
    """A rank that is only asked which it is."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def counts(self, sent: Tensor) -> Tensor:
        raise NotImplementedError

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        raise NotImplementedError


def small(
    load: str = "learned",
    *,
    is_renormalised: bool = True,
    shared: int = 1,
    group: ExpertGroup = ALONE,
) -> nn.Sequential:
    torch.manual_seed(0)
    return moe(
        11,
        layers=3,
        hidden=8,
        heads=2,
        context=6,
        experts=EXPERTS,
        top=TOP,
        shared=shared,
        load=load,
        is_renormalised=is_renormalised,
        group=group,
    )


def by_hand(block: nn.Module, value: Tensor, load: str, *, is_renormalised: bool) -> Tensor:
    """What an expert layer computes, token by token and expert by expert."""
    assert isinstance(block, ExpertBlock)
    part, experts = block.attention, block.experts
    attended = part.attended(value)  # type: ignore[operator]
    normed = part.norm(attended).flatten(0, 1)  # type: ignore[operator]
    rows = []
    for number, token in enumerate(normed):
        scores = part.router.score(token).softmax(-1)  # type: ignore[union-attr,operator]
        chosen = {
            "learned": scores.argsort(descending=True)[:TOP].tolist(),
            "balanced": [(number * TOP + choice) % EXPERTS for choice in range(TOP)],
            "skewed": [1 + (number * TOP + choice) % (EXPERTS - 1) for choice in range(TOP)],
        }[load]
        if load == "skewed" and number % 2 == 0:
            chosen[0] = 0
        total = sum(scores[expert] for expert in chosen) if is_renormalised else 1.0
        row = experts.shared(token) if experts.shared is not None else torch.zeros_like(token)
        for expert in chosen:
            gate, up = (token @ experts.up.weight[expert]).chunk(2)
            out = (functional.silu(gate) * up) @ experts.down.weight[expert]
            row = row + scores[expert] / total * out
        rows.append(row)
    return attended + torch.stack(rows).view_as(attended)  # type: ignore[no-any-return]


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("is_renormalised", [True, False], ids=["renormalised", "as scored"])
def test_experts_add_what_a_loop_over_tokens_adds(load: str, is_renormalised: bool) -> None:
    mine = small(load, is_renormalised=is_renormalised, shared=int(is_renormalised))
    theirs, tokens = copy.deepcopy(mine), torch.randint(11, (3, 5))
    value = tokens
    for name, module in theirs.named_children():
        is_expert = isinstance(module, ExpertBlock)
        value = (
            by_hand(module, value, load, is_renormalised=is_renormalised)
            if is_expert
            else module(value)
        )
        assert is_expert == (name in ("block1", "block2"))
    out = mine(tokens)
    torch.testing.assert_close(out, value)
    for each in (out, value):
        each.square().mean().backward()
    for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_the_first_layers_are_dense() -> None:
    assert [type(module) for module in small()][1:4] == [DenseBlock, ExpertBlock, ExpertBlock]


@pytest.mark.parametrize("load", ["balanced", "skewed"])
def test_the_host_knows_how_experts_are_dealt_out(load: str) -> None:
    block = small(load).block1
    assert isinstance(block, ExpertBlock)
    for tokens in (1, 4, 7):
        routed = block.attention(torch.randn(tokens, 1, 8))
        counts = torch.bincount(routed.chosen.flatten(), minlength=EXPERTS).tolist()
        assert routed.counts == tuple(counts) == dealt_counts(load, tokens, TOP, EXPERTS)
        assert all(a != b for a, b in routed.chosen.tolist())


def test_how_even_loads_are() -> None:
    assert dealt_counts("balanced", 64, TOP, EXPERTS) == (32, 32, 32, 32)
    assert dealt_counts("skewed", 64, TOP, EXPERTS)[0] == 32
    assert max(dealt_counts("skewed", 64, TOP, 16)[1:]) < 10


def test_a_rank_has_rows_of_the_whole_model() -> None:
    whole, ranks = small(), [small(group=Rank(rank, 2)) for rank in range(2)]
    for name, weight in whole.named_parameters():
        parts: list[Tensor] = [rank.get_parameter(name) for rank in ranks]
        is_expert = ".experts.up." in name or ".experts.down." in name
        assert [is_apart(part) for part in parts] == [is_expert] * 2
        for part in parts if not is_expert else [torch.cat(parts)]:
            assert torch.equal(part, weight)


def test_products_defer_what_autograd_computes() -> None:
    layer, sizes = GroupedLinear(3, 4, 5, range(3)), (3, 0, 2)
    rows, gradient = torch.randn(5, 4, requires_grad=True), torch.randn(5, 5)
    layer(rows, sizes).backward(gradient)
    assert rows.grad is not None
    assert torch.equal(rows.grad, layer.input_grad(rows.detach(), gradient, sizes))
    (found,) = layer.weight_grad(rows.detach(), gradient, sizes)
    assert found is not None
    assert layer.weight.grad is not None
    assert torch.equal(found, layer.weight.grad)


def test_rows_of_ranks_are_turned_to_rows_of_experts_and_back() -> None:
    sizes = ((2, 0, 1), (1, 3, 0))  # of ranks 0 and 1, for three experts
    rows = torch.tensor([10, 10, 12, 0, 1, 1, 1])  # expert, and 10 more of rank 0
    found = turned(rows, sizes)
    assert found.tolist() == [10, 10, 0, 1, 1, 1, 12]
    assert all(a % 10 <= b % 10 for a, b in pairwise(found.tolist()))
    assert torch.equal(turned(found, tuple(zip(*sizes, strict=True))), rows)


@pytest.mark.parametrize("load", LOADS)
def test_a_batch_without_tokens_passes_through(load: str) -> None:
    model = moe(5, layers=1, hidden=8, heads=2, context=4, experts=4, top=2, dense=0, load=load)
    out = model(torch.zeros(0, 4, dtype=torch.long))
    assert out.shape == (0, 4, 5)
    out.sum().backward()
    assert all(not weight.grad.any() for weight in model.parameters() if weight.grad is not None)


def test_what_cannot_be_routed_is_refused() -> None:
    with pytest.raises(InputError, match="one of learned, balanced, skewed, not even"):
        small("even")
    with pytest.raises(InputError, match="cannot go to 4 of 4 experts with a skewed load"):
        moe(11, layers=2, hidden=8, heads=2, context=6, experts=4, top=4, load="skewed")
    with pytest.raises(InputError, match="4 experts cannot be held by 3 ranks"):
        small(group=Rank(0, 3))
    with pytest.raises(InputError, match="3 heads do not divide a hidden size of 8"):
        moe(11, layers=2, hidden=8, heads=3, context=6, experts=4, top=2)
