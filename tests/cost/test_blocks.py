"""Parameters, FLOPs and bytes of models, against what is published of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.cost import DEVICES, MODELS, Transformer, active_parameters, blocks, flops, parameters
from weft.errors import InputError

PARAMETERS = [
    # model, published total, published active, within
    ("gpt-1.5b", 1.5e9, 1.5e9, 0.02),
    ("gpt-6.2b", 6.2e9, 6.2e9, 0.005),
    ("gpt-14.6b", 14.6e9, 14.6e9, 0.005),
    ("gpt-28.3b", 28.3e9, 28.3e9, 0.005),
    ("gpt-145.6b", 145.6e9, 145.6e9, 0.001),
    ("gpt-529.6b", 529.6e9, 529.6e9, 0.001),
    ("gpt-1008b", 1008e9, 1008e9, 0.001),
    ("gpt-3", 175e9, 175e9, 0.01),
    ("llama-3-8b", 8.03e9, 7.50e9, 0.001),  # active: without the embedding, here and below
    ("llama-3-70b", 70.6e9, 69.5e9, 0.001),
    ("llama-3-405b", 405e9, 405e9, 0.01),
    ("qwen-2.5-72b", 72.7e9, 71.5e9, 0.001),
    ("qwen-3-30b-a3b", 30.5e9, 3.3e9 - 151936 * 2048, 0.025),  # the card's 3.3 B, to two digits
    ("mixtral-8x7b", 46.7e9, 12.9e9 - 32000 * 4096, 0.005),
    ("deepseek-v3", 671e9, 36.7e9, 0.005),  # README_WEIGHTS.md of DeepSeek-V3
    ("kimi-k2", 1.04e12, 32e9, 0.015),  # the report's 1.04 T; the layers it lists hold 1.026 T
]


@pytest.mark.parametrize("row", PARAMETERS, ids=lambda row: row[0])
def test_parameters_are_those_published(row: tuple[str, float, float, float]) -> None:
    name, all_of_them, active, within = row
    assert parameters(MODELS[name]) == pytest.approx(all_of_them, rel=within)
    assert active_parameters(MODELS[name]) == pytest.approx(active, rel=within)


# model, layers, heads, hidden, sequence, microbatch: arXiv 2401.10241, Table 3, and
# arXiv 2104.04473, Table 1
PUBLISHED = [
    ("gpt-1.5b", 22, 24, 2304, 1024, 6),
    ("gpt-6.2b", 30, 32, 4096, 1024, 3),
    ("gpt-14.6b", 46, 40, 5120, 1024, 1),
    ("gpt-28.3b", 62, 48, 6144, 1024, 1),
    ("gpt-145.6b", 80, 96, 12288, 2048, 1),
    ("gpt-529.6b", 105, 128, 20480, 2048, 1),
    ("gpt-1008b", 128, 160, 25600, 2048, 1),
]


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row[0])
def test_sizes_are_those_of_the_papers_tables(row: tuple[str, int, int, int, int, int]) -> None:
    name, *sizes = row
    fields = ("layers", "heads", "hidden", "sequence", "microbatch")
    assert [getattr(MODELS[name], field) for field in fields] == sizes


def test_what_no_document_says_is_called_an_assumption() -> None:
    """Nothing is quoted from memory."""
    sources = [preset.source for presets in (MODELS, DEVICES) for preset in presets.values()]
    assert not any("recalled" in source for source in sources)
    assert "is assumed" in MODELS["gpt-6.2b"].source
    assert "assumed" in DEVICES["a100"].source


@pytest.mark.parametrize("name", MODELS)
def test_every_preset_says_where_it_stands(name: str) -> None:
    assert MODELS[name].source


def gpt(name: str, microbatch: int) -> Transformer:
    """A GPT whose attention computes what its mask removes, as published formulas count."""
    return replace(MODELS[name], microbatch=microbatch, is_causal=False)


@pytest.mark.parametrize("name", ["gpt-145.6b", "gpt-529.6b", "gpt-1008b", "gpt-3"])
def test_flops_are_megatrons_to_the_last_digit(name: str) -> None:
    """arXiv 2104.04473, equation 3, which recomputes every layer."""
    model = gpt(name, 4)
    batch, length, layers, hidden = 4, model.sequence, model.layers, model.hidden
    more = length / (6 * hidden) + model.vocabulary / (16 * layers * hidden)
    expected = 96 * batch * length * layers * hidden**2 * (1 + more)
    again = sum(block.forward_flops for block in blocks(model) if block.name == "dense")
    assert flops(model) + again == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["gpt-3", "llama-3-405b", "kimi-k2"])
def test_flops_are_six_per_active_parameter_and_token_and_the_scores(name: str) -> None:
    model = MODELS[name]
    size = 2 * model.head_dim + model.rope_dim
    scores = 3 * model.layers * model.heads * size * model.sequence * (model.sequence + 1)
    expected = 6 * active_parameters(model) * model.tokens + scores
    assert flops(model) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("is_causal", "rate"), [(False, 432e12), (True, 385e12)])
def test_flops_of_deepseek_v3_are_those_of_its_step(is_causal: bool, rate: float) -> None:
    """arXiv 2505.09343, Table 4: 19.926 s on 2048 devices, 15360 x 4096 tokens."""
    model = replace(MODELS["deepseek-v3"], is_causal=is_causal)
    per_token = rate * 2048 * 19.926 / (15360 * 4096)
    assert flops(model) / model.tokens == pytest.approx(per_token, rel=0.01)


def test_scores_have_two_input_gradients_and_no_weight_gradient() -> None:
    layer = blocks(MODELS["gpt-3"])[1]
    scores = layer.forward_flops - layer.weight_grad_flops
    assert scores == sum(product.flops for product in layer.scores) > 0
    assert layer.input_grad_flops == layer.weight_grad_flops + 2 * scores


def test_a_gpt_layer_keeps_32_bytes_per_token_and_hidden() -> None:
    """arXiv 2205.05198, section 4.1: 34 with two dropout masks of one byte."""
    model = MODELS["gpt-3"]
    assert blocks(model)[1].saved == 32 * model.tokens * model.hidden


def test_a_layer_of_deepseek_v3_keeps_what_megatron_measures() -> None:
    """arXiv 2603.07685: of 131 GB, 30.4 are what MLA expands, 26.3 what experts write."""
    model = MODELS["deepseek-v3"]
    kept = blocks(model)[-2].saved / (model.tokens * model.value_bytes)
    expanded = model.heads * (2 * (model.head_dim + model.rope_dim) + model.head_dim)
    assert expanded / kept == pytest.approx(30.4 / 131, rel=0.02)
    assert model.top_k * model.hidden / kept == pytest.approx(26.3 / 131, rel=0.02)


def test_the_head_keeps_its_logits_in_fp32() -> None:
    model = MODELS["gpt-3"]
    expected = 4 * model.tokens * model.hidden * (1 + model.vocabulary / model.hidden)
    assert blocks(model)[-1].saved == expected  # arXiv 2205.05198, section 4.3


def test_messages_and_dispatches() -> None:
    model = MODELS["kimi-k2"]
    assert model.message_bytes == 4096 * 7168 * 2 == 58_720_256
    assert model.dispatch_bytes == 8 * 7168 * 2
    assert blocks(model)[-2].routed == model.tokens * model.dispatch_bytes
    assert blocks(model)[1].routed == 0


def test_dense_layers_come_first() -> None:
    names = [block.name for block in blocks(MODELS["deepseek-v3"])]
    assert names == ["embedding", *["dense"] * 3, *["moe"] * 58, "head"]


@pytest.mark.parametrize("spread", [2, 16, 64])
def test_spreading_experts_divides_their_weights_and_not_their_work(spread: int) -> None:
    model = MODELS["deepseek-v3"]
    whole, part = blocks(model)[-2], blocks(model, spread=spread)[-2]
    assert part.expert_parameters == whole.expert_parameters / spread
    assert part.shared_parameters == whole.shared_parameters
    assert part.flops == pytest.approx(whole.flops)


def test_experts_that_do_not_divide_are_refused() -> None:
    with pytest.raises(InputError, match="256 experts of a layer cannot be spread over 7"):
        blocks(MODELS["deepseek-v3"], spread=7)
    with pytest.raises(InputError, match="no experts that 2 groups could share"):
        blocks(MODELS["gpt-3"], spread=2)


def test_a_tied_embedding_counts_once_but_stands_twice() -> None:
    tied = MODELS["gpt-3"]
    table = tied.vocabulary * tied.hidden
    assert parameters(replace(tied, is_tied=False)) == parameters(tied) + table
    assert sum(block.parameters for block in blocks(tied)) == parameters(tied) + table
