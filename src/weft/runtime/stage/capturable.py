"""What can be captured: replays run no Python, so nothing of a stage may depend on it.

Refused is what would be computed once and then never again: hooks, numbers that a forward counts,
tensors that it replaces, draws on the host. What else Python does in a forward is not seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from weft.errors import InputError
from weft.runtime.stage.cast import Cast
from weft.runtime.stage.keyed import KeyedModule

PLAIN = (bool, int, float, str)  # types of attributes by which a module may compute differently
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
CALLED = FunctionType, MethodType, partial
OFF = "or leave graphs off"


def refuse_python(module: nn.Module, stage: int, cast: Cast) -> None:
    """Refuse what runs in Python at every call of a stage, or draws from its own generator."""
    for name, one in module.named_modules():
        if any(not _is_ours(hook) for hook in _hooks(one)):
            raise InputError(
                f"{_where(stage, name)} has a hook, which would not run when its CUDA graph is"
                f" replayed; put what it does into the module, {OFF}"
            )
        for attribute, value in vars(one).items():
            if type(value) is torch.Generator:
                raise InputError(
                    f"{_where(stage, name)} has a generator of its own ({attribute}), whose draws"
                    f" cannot be replayed from CUDA graphs; draw from torch's, {OFF}"
                )
    for name, weight in module.named_parameters():
        if weight._backward_hooks or weight._post_accumulate_grad_hooks:
            raise InputError(
                f"stage {stage}, weight {name} has a hook, which would not run when a CUDA graph is"
                f" replayed; change gradients in the optimizer, {OFF}"
            )
    if cast.dtype is not None:
        raise InputError(
            f"stage {stage} runs under autocast, which keeps casts of weights from one microbatch"
            f" to the next, and CUDA graphs cannot; give precision='bf16' instead, {OFF}"
        )


def _where(stage: int, name: str) -> str:
    return f"stage {stage}, module {name}" if name else f"stage {stage}"


def _hooks(module: nn.Module) -> Iterator[Any]:
    for kind in HOOKS:
        found: dict[int, Any] | None = getattr(module, kind, None)
        if found:
            yield from found.values()


def _is_ours(hook: Any) -> bool:
    return isinstance(getattr(hook, "__self__", None), KeyedModule)


def way_of(module: nn.Module) -> Mapping[str, object]:
    """By which a stage computes as it does: numbers in attributes, and where its tensors are."""
    return dict(_marks(module))


def way_of_loss(loss: object) -> Mapping[str, object]:
    """The same of a loss, which may be a module, another object, a method or any function."""
    found: dict[str, object] = {}
    known, parts = set[int](), [("value", loss)]
    while parts:
        name, value = parts.pop()
        if isinstance(value, nn.Module):
            found |= {f"{mark} ({name})": one for mark, one in _marks(value)}
        elif isinstance(value, Tensor):
            found[name] = _address(value)
        elif type(value) in PLAIN:
            found[name] = value
        elif (value is loss or isinstance(value, CALLED)) and id(value) not in known:
            known.add(id(value))
            parts += _parts(value)
    return {f"{name} of the loss": value for name, value in found.items()}


def _parts(loss: object) -> Iterator[tuple[str, object]]:
    """What a callable computes with: attributes, what it is bound to, what it has closed over."""
    owner = getattr(loss, "__self__", None)
    if isinstance(owner, nn.Module):
        yield "module", owner
        owner = None
    for one in (loss, owner):
        for name, value in getattr(one, "__dict__", {}).items():
            yield f"attribute {name}", value
    if isinstance(loss, partial):
        yield "function", loss.func
        for place, value in (*enumerate(loss.args), *loss.keywords.items()):
            yield f"argument {place}", value
    names: tuple[str, ...] = getattr(getattr(loss, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(loss, "__closure__", None) or (), strict=True):
        with suppress(ValueError):  # nothing is in it yet
            yield f"variable {name}", cell.cell_contents


def _marks(module: nn.Module) -> Iterator[tuple[str, object]]:
    for path, one in module.named_modules():
        for name, value in vars(one).items():
            if type(value) in PLAIN:
                yield _place("attribute", path, name), value
            elif isinstance(value, Tensor):
                yield _place("attribute", path, name), _address(value)
        for name, buffer in one._buffers.items():
            if buffer is not None:
                yield _place("buffer", path, name), _address(buffer)
        for name, weight in one._parameters.items():
            if weight is not None:
                yield _place("weight", path, name), (*_address(weight), weight.requires_grad)


def tensors_of(module: nn.Module) -> list[Tensor]:
    """All tensors that a stage keeps, as far as it shows."""
    found: list[Tensor] = [*module.parameters(), *module.buffers()]
    for one in module.modules():
        found += [value for value in vars(one).values() if isinstance(value, Tensor)]
    return found


def _place(kind: str, path: str, name: str) -> str:
    return f"{kind} {path}.{name}" if path else f"{kind} {name}"


def _address(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape)


def refuse_change(stage: int, before: Mapping[str, object], after: Mapping[str, object]) -> None:
    """Refuse a forward after which a stage would compute in another way, or elsewhere."""
    for name in [*before, *(name for name in after if name not in before)]:
        if name not in after or name not in before or before[name] != after[name]:
            raise InputError(
                f"stage {stage} replaces its {name} in a forward, which a replay of its CUDA graph"
                f" would not; make it a buffer that changes in place, {OFF}"
            )


def refuse_host_draws(stage: int, seeds: Sequence[int]) -> None:
    """Refuse a forward that draws from the host's generator."""
    if seeds:
        raise InputError(
            f"stage {stage} draws random numbers on the host, which a replay of its CUDA graph"
            f" would not; draw them on the device (device=...), {OFF}"
        )


def refuse_other_draws(stage: int) -> None:
    """Refuse a stage of which each forward draws somewhere else."""
    raise InputError(
        f"stage {stage} draws random numbers in other places than in an earlier forward of the same"
        f" shapes, which a replay of its CUDA graph would not; let every forward draw alike, {OFF}"
    )


def refuse_sparse(stage: int, named: Mapping[str, nn.Parameter]) -> None:
    """Refuse gradients that have no fixed memory."""
    for name, weight in named.items():
        if weight.grad is not None and weight.grad.layout is not torch.strided:
            raise InputError(
                f"stage {stage}, weight {name} has a sparse gradient, which has no fixed place in"
                f" memory; use dense ones, {OFF}"
            )


@contextmanager
def without_forwards(stage: int) -> Iterator[None]:
    """Refuse a backward that runs a module again: what a checkpoint draws would not be keyed."""

    def refuse(*_: object) -> None:
        refuse_checkpoint(stage)

    hook = register_module_forward_pre_hook(refuse)
    try:
        yield
    finally:
        hook.remove()


def refuse_checkpoint(stage: int) -> None:
    raise InputError(
        f"stage {stage} has a checkpoint, which restores random states in Python, and replays of"
        f" CUDA graphs run none; take the checkpoint out, {OFF}"
    )
