from __future__ import annotations

import json
import math

import pytest

from weft.cost import MODELS, Transformer, model_named
from weft.errors import InputError

SMALL: dict[str, object] = {
    "layers": 4,
    "hidden": 64,
    "heads": 4,
    "ffn": 256,
    "vocabulary": 100,
    "sequence": 32,
}
EXPERTS = {"experts": 8, "top_k": 2, "expert_ffn": 32}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_survives_json(name: str) -> None:
    text = json.dumps(MODELS[name].to_mapping(), allow_nan=False)
    assert Transformer.from_mapping(json.loads(text)) == MODELS[name]


def test_what_is_left_out_follows_from_the_rest() -> None:
    model = Transformer.from_mapping(SMALL)
    assert (model.kv_heads, model.head_dim, model.tokens) == (4, 16, 32)
    assert not model.is_latent


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"layers": 0}, "layers is 0; it must be a whole number from 1 to"),
        ({"layers": 10**6}, "layers is 1000000"),
        ({"hidden": -64}, "hidden is -64"),
        ({"heads": 2.0}, "heads is 2.0; it must be a whole number"),
        ({"heads": None}, "heads is None"),
        ({"sequence": math.nan}, "sequence is nan"),
        ({"vocabulary": "many"}, "vocabulary is 'many'"),
        ({"microbatch": True}, "microbatch is True"),
        ({"gated": 1}, "gated is 1; it must be true or false"),
        ({"source": 1}, "source is 1; it must be a text"),
        ({"heads": 5}, "hidden 64 over 5 heads leaves a rest; give head_dim"),
        ({"kv_heads": 3}, "kv_heads 3 does not divide heads 4"),
        ({"rope_dim": 8}, "give kv_rank too"),
        ({"top_k": 2}, "top_k is given, but experts is 0"),
        (EXPERTS | {"top_k": 9}, "top_k is 9; a token goes to 1 to 8 experts"),
        (EXPERTS | {"expert_ffn": 0}, "expert_ffn is 0"),
        (EXPERTS | {"dense_layers": 5}, "dense_layers is 5 of 4 layers"),
        ({"hiden": 64}, "model: unknown key 'hiden'; did you mean 'hidden'"),
        ({"is_gated": True}, "model: unknown key 'is_gated'; did you mean 'gated'"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_key(change: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError) as refusal:
        Transformer.from_mapping(SMALL | change)
    assert reason in str(refusal.value)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(InputError, match="model: the key 'ffn' is missing"):
        Transformer.from_mapping({key: SMALL[key] for key in SMALL if key != "ffn"})


def test_no_mapping_at_all() -> None:
    with pytest.raises(InputError, match="it must be keys and values"):
        Transformer.from_mapping([])  # type: ignore[arg-type]


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(InputError, match="no model is named 'kimi'; did you mean 'kimi-k2'"):
        model_named("kimi")
    assert model_named("kimi-k2") is MODELS["kimi-k2"]
