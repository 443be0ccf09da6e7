"""The model of a training run: Weft's small GPT, or one of Hugging Face, from its config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.errors import InputError
from weft.models import gpt
from weft.notation import is_huggingface
from weft.request import is_model_file
from weft.runtime import Stages, split
from weft.runtime.split.hollow import AUXILIARY
from weft.train.settings import Settings


def stages_of(settings: Settings, device: torch.device) -> Stages:
    """The stages of a run on a device, the same on every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        name = settings.model
        if name is not None and is_model_file(name) and is_huggingface(name):
            return _from_config(settings, Path(name), device)
        return _own(settings, device)


def _own(settings: Settings, device: torch.device) -> Stages:
    stages, most = settings.program.stages, settings.layers + 2
    if stages > most:
        raise InputError(
            f"{settings.layers} layers, embedding and head make {most} stages at most,"
            f" {settings.program.name} has {stages}; use --layers {stages - 2}"
        )
    model = gpt(
        settings.data.vocabulary,
        layers=settings.layers,
        hidden=settings.hidden,
        heads=settings.heads,
        context=settings.context,
        dropout=settings.dropout,
    )
    return split(model.to(device), stages=stages, layers=layers_of(settings.layers, stages))


def layers_of(blocks: int, stages: int) -> list[int] | None:
    """How many modules each stage gets: equal blocks, as embedding and head weigh little."""
    if stages > blocks:
        return None
    size, larger = divmod(blocks, stages)
    sizes = [size + (index < larger) for index in range(stages)]
    sizes[0] += 1
    sizes[-1] += 1
    return sizes


# Hugging Face


def _from_config(settings: Settings, path: Path, device: torch.device) -> Stages:
    """The stages of a model with weights drawn by its own code."""
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
        model: nn.Module = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise InputError(
            f"{path} describes no model that predicts the next token: {error}"
        ) from None
    return split(model.float().to(device), stages=settings.program.stages)


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
