"""Models of Hugging Face in train mode, with their default dropout, cut by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    MixtralConfig,
    MixtralModel,
)

from tests.runtime.exactness import differences
from tests.runtime.models import adam
from weft.ir.program import Program
from weft.lower import recompute
from weft.runtime import Pipeline
from weft.schedules import chimera, one_f_one_b, zb_h1

WORDS, WIDTH = 32, 16
WHOLE = one_f_one_b(devices=2, microbatches=4)
PROGRAMS = [WHOLE, recompute(WHOLE), zb_h1(devices=2, microbatches=4)]
IDS = ["whole", "again", "divided"]


class Blocks(nn.Module):
    """Some blocks of a model, between whatever comes first and last."""

    def __init__(self, first: nn.Module | None, blocks: Any, last: nn.Module | None) -> None:
        super().__init__()
        self.first, self.blocks, self.last = first, nn.ModuleList(blocks), last

    def forward(self, value: Tensor, tables: tuple[Tensor, Tensor] | None = None) -> Any:
        if self.first is not None:
            value, tables = self.first(value)
        given = {} if tables is None else {"position_embeddings": tables}
        for block in self.blocks:
            out = block(value, **given)
            value = out[0] if isinstance(out, tuple) else out
        return (value, tables) if self.last is None else self.last(value)


class Words(nn.Module):
    """What a model begins with: words, places, and tables for rotation."""

    def __init__(self, model: Any, kind: str) -> None:
        super().__init__()
        self.kind = kind
        if kind == "gpt2":
            self.words, self.places, self.drop = model.wte, model.wpe, model.drop
        elif kind == "bert":
            self.words = model.embeddings
        else:
            self.words, self.turns = model.embed_tokens, model.rotary_emb

    def forward(self, ids: Tensor) -> tuple[Tensor, Any]:
        value = self.words(ids)
        places = torch.arange(ids.shape[1]).unsqueeze(0)
        if self.kind == "gpt2":
            value = self.drop(value + self.places(places))
        return value, self.turns(value, places) if self.kind == "mixtral" else None


def stages(kind: str) -> list[nn.Module]:
    torch.manual_seed(0)
    model: Any
    config: dict[str, Any]
    if kind == "gpt2":
        config = {"n_layer": 2, "n_embd": WIDTH, "n_head": 2, "vocab_size": WORDS}
        config |= {"n_positions": 16, "bos_token_id": 0, "eos_token_id": 0}
        model = GPT2Model(GPT2Config(**config))
        blocks = model.h
    else:
        config = {"num_hidden_layers": 2, "hidden_size": WIDTH, "num_attention_heads": 2}
        config |= {"intermediate_size": 32, "vocab_size": WORDS}
        if kind == "bert":
            model = BertModel(BertConfig(**config))
            blocks = model.encoder.layer
        else:
            config |= {"num_key_value_heads": 2, "num_local_experts": 4}
            model = MixtralModel(MixtralConfig(**config))
            blocks = model.layers
    model.train()
    head = nn.Linear(WIDTH, WORDS)
    return [Blocks(Words(model, kind), blocks[:1], None), Blocks(None, blocks[1:], head)]


def likelihood(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def sentences() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(WORDS, (2, 8, 9), generator=generator)
    return [(ids[:, :-1], ids[:, 1:]) for ids in drawn]


@pytest.mark.parametrize("program", PROGRAMS, ids=IDS)
@pytest.mark.parametrize("kind", ["gpt2", "bert", "mixtral"])
def test_a_model_of_hugging_face_is_exact(kind: str, program: Program) -> None:
    assert differences(stages(kind), program, sentences(), loss=likelihood) == []


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_what_it_drops_does_not_depend_on_the_schedule(kind: str) -> None:
    losses = []
    for program in (*PROGRAMS, chimera(devices=2, microbatches=4)):
        pipeline = Pipeline(stages(kind), program, loss=likelihood, optimizer=adam)
        losses.append([float(pipeline.step(*data).losses.sum()) for data in sentences()])
    assert losses == [losses[0]] * 4
