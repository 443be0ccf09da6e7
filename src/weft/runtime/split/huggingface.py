"""Hugging Face models, cut between their layers.

Knows where such models have what, by their structure: a base model with one list of as many layers
as the config says, embeddings registered ahead of it, a norm after. Each stage runs the model's own
forward, with what other stages have left out (`hollow`). Imports transformers for models with
routers alone, which have brought it in.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from torch import nn

from weft.errors import InputError
from weft.runtime.split.hollow import (
    HIDDEN,
    ROUTED,
    After,
    Before,
    Called,
    Entrance,
    Exit,
    ModelPiece,
    Passage,
    Skipped,
    hollow,
)
from weft.runtime.split.objective import loss_of
from weft.runtime.split.sequential import sizes_of
from weft.runtime.split.stages import Stages

__all__ = ["is_pretrained", "layered", "loss_of"]

NOT_GIVEN = {  # arguments that no batch has: for generation, for other outputs, or for the loss
    "past_key_values",
    "cache_position",
    "use_cache",
    "labels",
    "logits_to_keep",
    "num_logits_to_keep",
    "return_dict",
    "encoder_hidden_states",
    "encoder_attention_mask",
    "head_mask",
    "cross_attn_head_mask",
}
INSTEAD = "give a list of modules, one per stage"


def is_pretrained(model: nn.Module) -> bool:
    """Whether a model is one of transformers; found without importing it."""
    return any(
        kind.__name__ == "PreTrainedModel" and kind.__module__.startswith("transformers.")
        for kind in type(model).__mro__
    )


def layered(model: nn.Module, *, stages: int, layers: Sequence[int] | None = None) -> Stages:
    """Pieces of a Hugging Face model: as equal as can be, or of given numbers of layers.

    The first has the embeddings as well, and the last the head; `loss` is the model's own.
    """
    anatomy = Anatomy.of(model)
    sizes = sizes_of(len(anatomy.layers), stages, layers)
    ends = [sum(sizes[: index + 1]) for index in range(stages)]
    if anatomy.is_routed:
        _record_routers(anatomy.base)
    pieces = [
        _piece(anatomy, range(end - size, end)) for size, end in zip(sizes, ends, strict=True)
    ]
    empty = _emptied(model)
    return Stages(pieces, init=partial(_initialise, empty), loss=loss_of(model), model=empty)


@dataclass(frozen=True, eq=False)
class Anatomy:
    """Where a model has what.

    base_name   the attribute with the base model; empty where the model is its own base
    layers_name the list of layers, in the base model
    """

    model: nn.Module
    base_name: str
    layers_name: str

    @classmethod
    def of(cls, model: nn.Module) -> Anatomy:
        """Find it; refuse a model that is built in another way."""
        whole: Any = model
        kind, config = type(model).__name__, whole.config
        if config.is_encoder_decoder or getattr(config, "add_cross_attention", False):
            raise InputError(
                f"{kind} has an encoder and a decoder, or attends to one: it is not a chain of"
                f" layers; {INSTEAD}"
            )
        prefix: str = whole.base_model_prefix
        base_name = prefix if isinstance(model._modules.get(prefix), nn.Module) else ""
        count = getattr(config.get_text_config(), "num_hidden_layers", None)
        found = [
            name
            for name, one in _outermost_lists(model.get_submodule(base_name), "")
            if len(one) == count
        ]
        if len(found) != 1:
            raise InputError(
                f"{kind} has {len(found) or 'no'} lists of {count} layers (num_hidden_layers of its"
                f" config) where one is expected; {INSTEAD}"
            )
        made = cls(model, base_name, found[0])
        for name, one in made.containers():
            _refuse_container(kind, name, one, is_model=one is model)
        return made

    @property
    def base(self) -> nn.Module:
        return self.model.get_submodule(self.base_name)

    @property
    def layers(self) -> nn.ModuleList:
        found = self.base.get_submodule(self.layers_name)
        assert isinstance(found, nn.ModuleList)
        return found

    @property
    def is_routed(self) -> bool:
        """Whether the model has a loss of its routers."""
        config: Any = self.model.config
        return bool(getattr(config, "output_router_logits", False))

    def containers(self) -> Iterator[tuple[str, nn.Module]]:
        """The modules around the layers, which every stage has in part."""
        path = ".".join(part for part in (self.base_name, self.layers_name) if part)
        names = path.split(".")
        for depth in range(len(names) + 1):
            name = ".".join(names[:depth])
            yield name, self.model.get_submodule(name)

    def takes(self) -> tuple[str, ...]:
        """The names of what a batch may have, in the order of the model's arguments."""
        names = [*inspect.signature(self.model.forward).parameters]
        names += inspect.signature(self.base.forward).parameters
        given = [one for one in names if one not in NOT_GIVEN and not one.startswith("output_")]
        return tuple(dict.fromkeys(one for one in given if not one.endswith("kwargs")))

    def options(self) -> dict[str, Any]:
        """What every forward is called with: nothing is cached, and outputs have names."""
        is_caching = "use_cache" in inspect.signature(self.base.forward).parameters
        return {"return_dict": True} | ({"use_cache": False} if is_caching else {})


def _outermost_lists(module: nn.Module, name: str) -> Iterator[tuple[str, nn.ModuleList]]:
    """The lists in a module that are in no other list."""
    for child_name, child in module.named_children():
        path = f"{name}.{child_name}" if name else child_name
        if isinstance(child, nn.ModuleList):
            yield path, child
        else:
            yield from _outermost_lists(child, path)


def _refuse_container(kind: str, name: str, module: nn.Module, *, is_model: bool) -> None:
    """Refuse what no stage could run, or have."""
    where = f"module {name} of {kind}" if name else kind
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        raise InputError(f"{where} has hooks, which no stage of it can run; hook its layers")
    if "forward" in vars(module) or module._compiled_call_impl is not None:
        raise InputError(
            f"{where} has a forward of its own, or a compiled one, which no stage of it can run;"
            f" compile its layers instead (layer.compile() of each)"
        )
    if (module._parameters or module._buffers) and not is_model:
        first = [*module._parameters, *module._buffers][0]
        raise InputError(
            f"{where} has {first} beside its layers, and it is not known which stages use it;"
            f" {INSTEAD}"
        )


# one piece


def _piece(anatomy: Anatomy, own: range) -> ModelPiece:
    """The piece with these layers."""
    count = len(anatomy.layers)
    passage = Passage(has_entrance=own.start > 0, has_exit=own.stop < count)
    whole = hollow(anatomy.model)
    base = _placed(whole, anatomy.base_name)
    if passage.has_exit and base is not whole:
        whole._modules = {anatomy.base_name: base}
        whole._parameters, whole._buffers = {}, {}
    place, path = base, anatomy.base_name
    for name in anatomy.layers_name.split("."):
        _leave_out(place, name, path, passage)
        place, path = _placed(place, name), f"{path}.{name}" if path else name
    for index, layer in enumerate(anatomy.layers):
        if index not in own:
            kind = {own.start - 1: Entrance, own.stop: Exit}.get(index, Skipped)
            place._modules[str(index)] = kind(layer, passage)
    how = Called(anatomy.base_name, anatomy.options(), anatomy.is_routed)
    takes = anatomy.takes() if own.start == 0 else (HIDDEN, ROUTED, *anatomy.takes())
    return ModelPiece(whole, passage, how, takes, f"{path}.{own.start}-{own.stop - 1}")


def _placed(parent: nn.Module, name: str) -> nn.Module:
    """A child made hollow, in the place of the real one; the module itself without a name."""
    if not name:
        return parent
    made = parent._modules[name] = hollow(parent.get_submodule(name))
    return made


def _leave_out(place: nn.Module, inner: str, path: str, passage: Passage) -> None:
    """Replace what other stages have beside a child: weights ahead of the layers, or after.

    What has no weights and drops nothing, such as rotary tables, every stage has for itself.
    """
    names = [*place._modules]
    for name, child in [*place._modules.items()]:
        if name == inner or child is None:
            continue
        is_ahead = names.index(name) < names.index(inner) or name.startswith("emb")
        where = f"{path}.{name}" if path else name
        if next(child.parameters(), None) is None and not isinstance(child, nn.Dropout):
            place._modules[name] = copy.deepcopy(child) if passage.has_entrance else child
        elif is_ahead and passage.has_entrance:
            place._modules[name] = Before(where, passage)
        elif not is_ahead and passage.has_exit:
            place._modules[name] = After(where, passage)


# what the model does itself


def _record_routers(base: nn.Module) -> None:
    """Let transformers hook the routers once: each piece would do so, as would the model."""
    recording = import_module("transformers.utils.output_capturing")
    recording.maybe_install_capturing_hooks(base)


def _emptied(model: nn.Module) -> nn.Module:
    """A model without anything in it."""
    made = hollow(model)
    made._modules, made._parameters, made._buffers = {}, {}, {}
    return made


def _initialise(model: Any, module: nn.Module) -> None:
    """Set the weights and buffers of a module as the model does; its children come before it."""
    model._init_weights(module)
