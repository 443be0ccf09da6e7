"""Adapted decoder layers compute what those of Hugging Face compute."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.errors import InputError
from weft.ir.kinds import Layer, Stream
from weft.lower import experts
from weft.models import adapted, adapted_layer, gpt
from weft.runtime import Pipeline, Reference, layers_of, split
from weft.schedules import kimi_k2

transformers = pytest.importorskip("transformers")


def mixtral(top: int = 2, **settings: Any) -> nn.Module:
    """A small model, whose experts transformers computes one after the other."""
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        num_experts_per_tok=top,
        vocab_size=40,
        max_position_embeddings=32,
        experts_implementation="eager",
        **settings,
    )
    model: nn.Module = transformers.MixtralForCausalLM(config).train()
    return model


def learned(model: nn.Module, module: nn.Module, tokens: Tensor) -> list[Tensor]:
    """What a module returns, and the gradients of the model's weights."""
    torch.manual_seed(1)
    found = module(tokens)
    logits: Tensor = found if isinstance(found, Tensor) else found.logits
    logits.square().mean().backward()  # type: ignore[no-untyped-call]
    return [logits, *(weight.grad for weight in model.parameters() if weight.grad is not None)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"attn_implementation": "eager", "attention_dropout": 0.1},
        {"sliding_window": 3},
        {"router_jitter_noise": 0.1},
    ],
    ids=["sdpa", "eager", "sliding", "jitter"],
)
def test_an_adapted_model_is_the_same_bit_by_bit(settings: dict[str, Any]) -> None:
    model, tokens = mixtral(**settings), torch.randint(40, (2, 7))
    twin = copy.deepcopy(model)
    theirs = learned(model, model, tokens)
    assert len(theirs) == 1 + len([*model.parameters()])
    for one, other in zip(learned(twin, adapted(twin), tokens), theirs, strict=True):
        assert torch.equal(one, other)


def test_more_experts_for_a_token_are_added_in_another_order() -> None:
    model, tokens = mixtral(top=3), torch.randint(40, (2, 7))
    twin = copy.deepcopy(model)
    pairs = zip(learned(twin, adapted(twin), tokens), learned(model, model, tokens), strict=True)
    for one, other in pairs:
        largest = float(other.detach().abs().max())
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6 * largest)


def loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def test_an_adapted_model_runs_in_segments() -> None:
    model = mixtral()
    twin, tokens = copy.deepcopy(model), torch.randint(40, (4, 7))
    program = kimi_k2(devices=2, microbatches=4, stages_per_device=2)
    stages = split(adapted(model), stages=4, layers=[2, 1, 1, 2])
    program = experts(program, layers=layers_of(stages))
    pipeline = Pipeline(stages, program, loss=loss)
    reference = Reference(split(adapted(twin), stages=4, layers=[2, 1, 1, 2]), program, loss=loss)
    assert torch.equal(pipeline.step(tokens, tokens).loss, reference.step(tokens, tokens))
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_layers_are_adapted_one_by_one() -> None:
    inner: Any = mixtral().model
    block = adapted_layer(inner.layers[1], inner.rotary_emb)
    assert layers_of([block]) == [(Layer.EXPERTS,)]
    assert block.experts.up.weight is inner.layers[1].mlp.experts.gate_up_proj


def test_what_is_built_otherwise_is_refused() -> None:
    model = gpt(11, layers=2, hidden=8, heads=2, context=6)
    with pytest.raises(InputError, match=r"Sequential has no model\.layers and lm_head"):
        adapted(model)
    with pytest.raises(InputError, match="Block has no input_layernorm"):
        adapted_layer(model[1], nn.Identity())
    with pytest.raises(InputError, match="a loss of the routers"):
        adapted(mixtral(output_router_logits=True))


def test_the_guide_to_experts_runs() -> None:
    """Its own model, a user's block, which equals the reference, and an adapted model."""
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", page[page.index("## Experts") :], re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile("\n".join(code), "guide", "exec"), names)  # noqa: S102  our own document
    for name in ("pipeline", "own", "mixtral"):
        lanes = names[name].program.lanes
        assert any(lane.stream is Stream.EXPERTS for lane in lanes)
    stages, rows = [names["Block"](8) for _ in range(4)], torch.randn(2, 16, 8)
    program = experts(kimi_k2(devices=2, microbatches=4, stages_per_device=2))
    reference = Reference(copy.deepcopy(stages), program, loss=functional.mse_loss)
    own = Pipeline(stages, program, loss=functional.mse_loss)
    assert torch.equal(own.step(*rows).loss, reference.step(*rows))
