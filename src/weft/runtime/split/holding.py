"""Holding: a stage has what its calls read, under the names of the whole model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn

from weft.runtime.split.trace import Part, Trace
from weft.runtime.split.tracer import is_hooked
from weft.runtime.stage.modules import twin_of


def hold(
    piece: nn.Module, trace: Trace, names: Iterable[str], *, others: Sequence[nn.Module]
) -> None:
    """Give a stage these parts of the model, in its order, in the modes that they are in."""
    known = {id(module) for other in others for module in other.modules()}
    order = _order(trace.model)
    for name in sorted(names, key=lambda name: (order.get(name, len(order)), name)):
        _register(piece, name, _own(trace.part(name), known), trace.model)
    _keep_modes(piece, trace.model)


def leave_nothing(stages: Sequence[nn.Module], model: nn.Module) -> None:
    """Give weights and buffers that no call reads to the stage that has most of their module."""
    known = {id(one) for stage in stages for one in (*stage.parameters(), *stage.buffers())}
    for name, one in (*model.named_parameters(), *model.named_buffers()):
        if id(one) not in known:
            near = [_nearness(stage, name) for stage in stages]
            _register(stages[near.index(max(near))], name, one, model)


def _own(part: Part, known: set[int]) -> Part:
    """A part; one of its own in place of a module without state that another stage has."""
    if not isinstance(part, nn.Module) or id(part) not in known:
        return part
    is_torchs = type(part).__module__.startswith("torch.nn.modules.") and not is_hooked(part)
    has_state = any(True for _ in (*part.parameters(), *part.buffers(), *part.children()))
    return twin_of(part) if is_torchs and not has_state else part


def _register(piece: nn.Module, name: str, part: Part, model: nn.Module) -> None:
    """Put a module, weight or buffer where it is in the whole model."""
    *parents, last = name.split(".")
    place = piece
    for parent in parents:
        if parent not in place._modules:
            place.register_module(parent, nn.Module())
        place = place.get_submodule(parent)
    if getattr(place, last, None) is part:
        return
    if isinstance(part, nn.Module):
        place.register_module(last, part)
    elif isinstance(part, nn.Parameter):
        place.register_parameter(last, part)
    else:
        place.register_buffer(last, part, persistent=_is_kept(model, name))


def _order(model: nn.Module) -> dict[str, int]:
    """The names of a model's modules, weights and buffers, as it has them."""
    names: list[str] = []
    for path, module in model.named_modules(remove_duplicate=False):
        own = (*module._parameters, *module._buffers)
        names += [path, *(f"{path}.{name}".removeprefix(".") for name in own)]
    return {name: index for index, name in enumerate(names)}


def _is_kept(model: nn.Module, name: str) -> bool:
    """Whether a buffer of a model is part of its state_dict."""
    path, _, last = name.rpartition(".")
    try:
        owner = model.get_submodule(path)
    except AttributeError:
        return False
    return last in owner._buffers and last not in owner._non_persistent_buffers_set


def _nearness(stage: nn.Module, name: str) -> int:
    """How much of a name a stage knows."""
    *parents, _ = name.split(".")
    paths = dict(stage.named_modules())
    return sum(".".join(parents[: depth + 1]) in paths for depth in range(len(parents)))


def _keep_modes(stage: nn.Module, model: nn.Module) -> None:
    every = model.named_modules(remove_duplicate=False)
    modes = {name: module.training for name, module in every}
    for name, module in stage.named_modules():
        module.training = modes.get(name, model.training)
