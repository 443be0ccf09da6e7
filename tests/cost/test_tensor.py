"""Tensor parallelism, whole optimizer states, selective recompute and replicas in nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from weft.cost import (
    DEVICES,
    MODELS,
    Block,
    Cost,
    Device,
    Layout,
    Link,
    Storage,
    Transformer,
    blocks,
    derive,
    parameters,
)
from weft.errors import InputError
from weft.ir.graph import Graph
from weft.ir.placement import Placement
from weft.schedules import REGISTRY

GPT, LLAMA, DEEPSEEK = MODELS["gpt-145.6b"], MODELS["llama-3-70b"], MODELS["deepseek-v3"]
H100 = DEVICES["h100"]
FLAT = Device(peak=1e15, memory=80e9, per_node=8)  # products at the peak, links without limit


def derived(
    model: Transformer = LLAMA,
    device: Device = H100,
    stages: int = 4,
    storage: Storage | None = None,
    **layout: Any,
) -> Cost:
    parts = (Graph.chain(stages), Placement.straight(stages))
    return derive(parts, model, device, Layout(**layout), storage)


def layer(model: Transformer, **spread: int) -> Block:
    return blocks(model, **spread)[model.layers]


# what a processor has


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
def test_all_work_and_all_that_is_kept_is_divided(model: Transformer) -> None:
    """arXiv 2205.05198, equation 2: with sequence parallelism nothing is kept twice."""
    whole, eighth = layer(model), layer(model, tensor=8)
    for name in ("parameters", "flops", "forward_flops", "moved", "saved", "cheap", "inputs"):
        assert getattr(eighth, name) == pytest.approx(getattr(whole, name) / 8)


def test_what_is_kept_of_a_layer_is_what_the_paper_counts() -> None:
    """Section 4.1 without scores and dropout masks: 32 s b h bytes, here over t processors."""
    assert layer(GPT, tensor=4).saved == 32 * GPT.tokens * GPT.hidden / 4


def test_the_ends_are_divided_but_for_token_numbers() -> None:
    first, *_, last = blocks(GPT, tensor=8)
    assert first.parameters == last.parameters == GPT.vocabulary * GPT.hidden / 8
    assert first.inputs == 8 * GPT.tokens


def test_a_processor_holds_a_whole_key_where_there_are_fewer() -> None:
    split = layer(LLAMA, tensor=16)
    copied = 2 * LLAMA.hidden * LLAMA.head_dim / 2  # half of a key's and a value's matrix
    assert split.parameters == pytest.approx(layer(LLAMA).parameters / 16 + copied)


def test_experts_stay_whole_and_are_spread_over_all_processors() -> None:
    split = layer(DEEPSEEK, spread=8, tensor=4)
    alone = layer(DEEPSEEK, spread=32)
    assert split.expert_parameters == alone.expert_parameters
    up, _ = split.experts
    assert up.columns == 2 * DEEPSEEK.expert_ffn
    assert split.routed == alone.routed / 4  # each sends its part of the tokens


@pytest.mark.parametrize(
    ("model", "layout", "reason"),
    [
        (LLAMA, {"tensor": 3}, "heads 64 cannot be split over 3 processors"),
        (replace(LLAMA, ffn=28671), {"tensor": 2}, "ffn 28,671 cannot be split over 2"),
        (MODELS["mixtral-8x7b"], {"tensor": 4, "experts": 4}, "cannot be spread over 16"),
        (LLAMA, {"tensor": 0}, "tensor is 0"),
        (LLAMA, {"is_sharded": 1}, "sharded is 1; it must be true or false"),
    ],
)
def test_what_cannot_be_split_is_refused(
    model: Transformer, layout: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        derived(model, **layout)


# in time


def test_without_links_eight_processors_take_an_eighth() -> None:
    one, eight = (derived(GPT, FLAT, tensor=tensor) for tensor in (1, 8))
    assert eight.times.forward[1] == pytest.approx(one.times.forward[1] / 8)
    assert eight.network.sizes(3)[0] == one.network.sizes(3)[0] / 8


def test_a_layer_gathers_and_scatters_four_times_each_way() -> None:
    """Section 4.2.2: an all-gather and a reduce-scatter around attention, and around the MLP."""
    slow = replace(FLAT, near=Link(1e-3, 1e9))
    tokens = GPT.tokens * GPT.hidden * GPT.value_bytes
    each = 1e-3 + tokens * 7 / 8 / 1e9
    fast, slowed = (derived(GPT, device, stages=2, tensor=8) for device in (FLAT, slow))
    layers = GPT.layers // 2
    for name in ("forward", "input_grad", "recompute"):
        added = getattr(slowed.times, name)[0] - getattr(fast.times, name)[0]
        assert added == pytest.approx((4 * layers + 1) * each)  # one more of the embedding
    assert slowed.times.weight_grad == fast.times.weight_grad


def test_a_group_larger_than_a_node_meets_over_the_wire() -> None:
    slow = replace(FLAT, far=Link(bandwidth=1e9))
    assert derived(GPT, slow, tensor=8).times.forward == derived(GPT, FLAT, tensor=8).times.forward
    assert derived(GPT, slow, tensor=16).times.forward[0] > 1


def test_groups_fill_nodes_so_that_stages_are_far() -> None:
    assert derived(tensor=2).network.default == H100.near  # four stages of two
    assert derived(tensor=8).network.default == H100.far


# optimizer states and sums


def test_states_that_are_not_sharded_are_whole_and_updated_by_all() -> None:
    sharded, whole = (derived(replicas=4, is_sharded=flag) for flag in (True, False))
    assert sum(whole.memory.optimizer) == 12 * parameters(LLAMA)
    assert sum(sharded.memory.optimizer) == pytest.approx(3 * parameters(LLAMA))
    assert whole.times.update[1] == pytest.approx(4 * sharded.times.update[1])
    # gradients are gathered, which have four bytes, and not weights, which have two
    assert whole.times.reduce[1] == pytest.approx(8 / 6 * sharded.times.reduce[1], rel=1e-4)


def test_replicas_of_a_node_share_what_leaves_it() -> None:
    device = replace(FLAT, far=Link(bandwidth=1e9))
    gradients = (4 + 2) * parameters(LLAMA) / 4
    for stages, together in ((8, 1), (4, 2), (2, 4), (1, 8)):  # pipelines of a node
        cost = derived(LLAMA, device, stages=stages, replicas=16)
        nodes = 16 / together
        expected = gradients * 4 / together * (nodes - 1) / nodes / 1e9
        assert sum(cost.times.reduce) == pytest.approx(expected, rel=1e-6)


# selective recompute


def test_selective_recompute_keeps_no_output_of_norms_and_activation_functions() -> None:
    """Of 32 bytes per token and h: 2 x 2 of two norms, 4 x 2 of the activation function."""
    usual, again = (derived(GPT, storage=Storage(is_selective=flag)) for flag in (False, True))
    layers = GPT.layers // 4
    dropped = usual.memory.saved[1] - again.memory.saved[1]
    assert dropped == 12 * GPT.tokens * GPT.hidden * layers
    moved = (2 * 4 + 8 * 2) * GPT.tokens * GPT.hidden * layers
    longer = again.times.input_grad[1] - usual.times.input_grad[1]
    assert longer == pytest.approx(moved / H100.bandwidth)
    assert longer < 0.02 * usual.times.input_grad[1]
    assert again.times.forward == usual.times.forward
    assert Storage.from_mapping({"selective": True}) == Storage(is_selective=True)


def test_pipes_on_the_same_devices_are_copies_too() -> None:
    device = replace(FLAT, near=Link(bandwidth=1e9), far=Link(bandwidth=1e8))
    program = REGISTRY["dualpipev"](devices=4, microbatches=8)
    assert sum(derive(program, LLAMA, device).times.reduce) == 0
    program = REGISTRY["dualpipe"](devices=8, microbatches=16)
    gradients = (4 + 2) * parameters(LLAMA)
    times = derive(program, LLAMA, device).times
    assert sum(times.reduce) == pytest.approx(gradients / 2 / 1e9)  # half goes, half is kept
    times = derive(program, LLAMA, device, Layout(tensor=8)).times
    assert sum(times.reduce) == pytest.approx(gradients / 8 / 2 / 1e8)
