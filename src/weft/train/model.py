"""The model of a training run: Weft's small GPT or mixture of experts, or one of Hugging Face."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional

from weft.cost import Transformer
from weft.errors import InputError
from weft.models import gpt, moe, share_layers
from weft.request import even_layers
from weft.runtime import Stages, split
from weft.runtime.experts import ALONE, ExpertGroup
from weft.runtime.planned import TENSOR, stages_by
from weft.runtime.split.hollow import AUXILIARY
from weft.train.settings import Settings


def stages_of(
    settings: Settings,
    device: torch.device,
    group: ExpertGroup = ALONE,
    mesh: DeviceMesh | None = None,
) -> Stages:
    """The stages of a run on a device, the same on every rank but for the experts of a group.

    Where a mesh has ranks that share layers, each has its part of them.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        mixture = settings.mixture
        if mixture is None and group.size > 1:
            raise InputError(
                f"--expert-ranks {group.size}: the model has no experts to hold apart; name one"
                f" that has, like --model moe-small"
            )
        if settings.is_huggingface:
            return _cut(settings, _from_config(settings, Path(str(settings.model))).to(device))
        model = _gpt(settings) if mixture is None else _moe(settings, mixture, group)
        model = model.to(device)
        return _cut(settings, model if mesh is None else share_layers(model, mesh[TENSOR]))


def _cut(settings: Settings, model: nn.Module) -> Stages:
    """The stages of a model, as a plan cuts and marks them where one is given."""
    if settings.planned is not None:
        plan = settings.planned.plan
        cut = replace(plan, layout=replace(plan.layout, tensor=1))  # what is shared is so already
        return Stages.of(stages_by(model, cut))  # type: ignore[arg-type]
    if settings.is_huggingface:
        return split(model, stages=settings.program.stages)
    stages, most = settings.program.stages, settings.layers + 2
    if stages > most:
        raise InputError(_too_many(settings, most))
    return split(model, stages=stages, layers=layers_of(settings.layers, stages))


def _too_many(settings: Settings, most: int) -> str:
    """Of stages, for the layers of a model: who has named a model has not chosen its layers."""
    program, layers = settings.program, settings.layers
    if settings.model is None:
        made, remedy = f"--layers {layers}", f"use --layers {program.stages - 2}"
    else:
        made, remedy = f"{layers} layers of {settings.model}", "use fewer, by -d and -k"
    return (
        f"embedding, {made} and head make {most} stages at most, and {program.name} has"
        f" {program.stages}; {remedy}"
    )


def _gpt(settings: Settings) -> nn.Sequential:
    return gpt(
        settings.data.vocabulary,
        layers=settings.layers,
        hidden=settings.hidden,
        heads=settings.heads,
        context=settings.context,
        dropout=settings.dropout,
    )


def _moe(settings: Settings, mixture: Transformer, group: ExpertGroup) -> nn.Sequential:
    return moe(
        settings.data.vocabulary,
        layers=settings.layers,
        hidden=settings.hidden,
        heads=settings.heads,
        context=settings.context,
        experts=mixture.experts,
        top=mixture.top_k,
        dense=mixture.dense_layers,
        inner=mixture.expert_ffn,
        shared=mixture.shared_experts,
        dropout=settings.dropout,
        group=group,
    )


def layers_of(blocks: int, stages: int) -> list[int] | None:
    """How many modules each stage gets: equal blocks, as embedding and head weigh little."""
    if stages > blocks:
        return None
    sizes = [*even_layers(blocks, stages)]
    sizes[0] += 1
    sizes[-1] += 1
    return sizes


# Hugging Face


def _from_config(settings: Settings, path: Path) -> nn.Module:
    """A model with weights drawn by its own code."""
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError:
        raise InputError(
            f"{path} describes a model of Hugging Face, which needs transformers: pip install"
            f" 'weft[huggingface]'"
        ) from None
    if settings.dropout:
        raise InputError(f"--dropout is Weft's own model's; {path} has rates of its own")
    try:
        config: Any = AutoConfig.from_pretrained(path)
        _check_fits(settings, path, config)
        model: nn.Module = AutoModelForCausalLM.from_config(config)
    except ValueError as error:
        raise InputError(
            f"{path} describes no model that predicts the next token: {error}"
        ) from None
    return model.float()


def _check_fits(settings: Settings, path: Path, config: Any) -> None:
    """Refuse a model that does not know all tokens, or cannot read as many."""
    text = config.get_text_config()
    longest = getattr(text, "max_position_embeddings", None)
    if text.vocab_size < settings.data.vocabulary:
        raise InputError(
            f"{path} has a vocabulary of {text.vocab_size}, and {settings.data.name} one of"
            f" {settings.data.vocabulary}; raise vocab_size, or give other data (--data)"
        )
    if longest is not None and longest < settings.context:
        raise InputError(
            f"{path} reads {longest} tokens at most; use --context {longest}, or raise it there"
        )


class NextToken:
    """The loss of a run: how likely the tokens that follow were.

    What a mixture of experts adds for its routers counts with the coefficient of its config.
    """

    def __init__(self, coefficient: float = 0.0) -> None:
        self._coefficient = coefficient

    def __call__(self, output: Any, target: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        if isinstance(output, Tensor):
            return _cross_entropy(output, target)
        return _cross_entropy(output["logits"], target), self._coefficient * output[AUXILIARY]


def loss_of(stages: Stages) -> NextToken:
    """The loss of stages, by what their model is."""
    return NextToken(getattr(stages.loss, "coefficient", 0.0))


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())
