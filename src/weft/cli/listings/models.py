"""Models: how large they are, and what a microbatch of theirs takes."""

from __future__ import annotations

from collections.abc import Iterator

from weft.cli.listings.listing import Listing
from weft.cost import MODELS, Transformer, active_parameters, flops, model_named, parameters
from weft.cost.units import BYTES, Unit, fitting
from weft.notation.json.descriptions import model_object

_COUNTS = (Unit("B", 1e9), Unit("M", 1e6), Unit("K", 1e3))
_FLOPS = (Unit("PFLOP", 1e15), Unit("TFLOP", 1e12), Unit("GFLOP", 1e9))


def _row(name: str, model: Transformer) -> tuple[str, ...]:
    active = _count(active_parameters(model)) if model.experts else "-"
    return name, _count(parameters(model)), active, str(model.layers), model.source


def _title(name: str, model: Transformer) -> str:
    return f"{name}: {_count(parameters(model))} parameters"


def _details(name: str, model: Transformer) -> Iterator[tuple[str, str]]:
    work, message = flops(model), model.message_bytes
    yield "layers", f"{model.layers}, hidden size {model.hidden:,}, {_mlp(model)} of {model.ffn:,}"
    yield "attention", _attention(model)
    if model.experts:
        yield "experts", _experts(model)
        yield "active", f"{_count(active_parameters(model))} parameters that a token meets"
    tied = ", tied to the head" if model.is_tied else ""
    yield "vocabulary", f"{model.vocabulary:,}{tied}"
    yield "microbatch", f"{model.microbatch} x {model.sequence:,} tokens"
    yield "takes", f"{fitting(work, _FLOPS).amount(work)}, forward and backward"
    yield "sends", f"{fitting(message, BYTES).amount(message)} from stage to stage"
    yield "source", model.source
    yield "try", f"weft simulate 1f1b -d 8 -n 24 --model {name} --device h100"


def _mlp(model: Transformer) -> str:
    return "gated MLP" if model.is_gated else "MLP"


def _attention(model: Transformer) -> str:
    heads = f"{model.heads} heads of {model.head_dim}"
    if model.is_latent:
        rope = f" and {model.rope_dim} rotated" if model.rope_dim else ""
        return f"latent of rank {model.kv_rank}, {heads}{rope}"
    if model.kv_heads != model.heads:
        return f"{heads}, {model.kv_heads} for keys and values"
    return heads


def _experts(model: Transformer) -> str:
    shared = f" and {model.shared_experts} shared" if model.shared_experts else ""
    dense = f"; the first {model.dense_layers} layers have none" if model.dense_layers else ""
    return f"{model.top_k} of {model.experts}{shared}, of inner size {model.expert_ffn:,}{dense}"


def _count(value: float) -> str:
    return fitting(value, _COUNTS).amount(value)


def _described(name: str, model: Transformer) -> dict[str, object]:
    return {
        "name": name,
        "parameters": parameters(model),
        "active_parameters": active_parameters(model),
        "flops": flops(model),
        "model": model_object(model),
    }


LISTING = Listing(
    entries=MODELS,
    find=model_named,
    columns=("model", "parameters", "active", "layers", "source"),
    row=_row,
    title=_title,
    details=_details,
    described=_described,
    footer=(
        "active is what a token meets where there are experts. All about one: weft list models NAME"
    ),
)
