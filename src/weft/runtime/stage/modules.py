"""Modules as people write them: what can be trained in a pipeline, how it is copied, what runs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch
from torch import nn

from weft.errors import InputError
from weft.runtime.experts.apart import keep_apart

WRAPPERS = {  # torch's, by name: importing them takes seconds
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "DataParallel",
}


def refuse_unsuited(stages: Sequence[nn.Module], loss: Callable[..., object]) -> None:
    """Refuse, by name, what would hang or not be trained."""
    for index, stage in enumerate(stages):
        for name, module in stage.named_modules():
            where = f"stage {index}" + (f", module {name}" if name else "")
            if wrapper := _wrapper(module):
                raise InputError(
                    f"{where} is wrapped in {wrapper}, whose own communication would"
                    f" wait for the pipeline's; give the module inside"
                )
            if any(nn.parameter.is_lazy(weight) for weight in module.parameters(recurse=False)):
                raise InputError(
                    f"{where} is a {type(module).__name__} whose weights have no shape yet; run"
                    f" one batch through the model before it is split"
                )
    for module in _modules_of(loss):
        if any(weight.requires_grad for weight in module.parameters()):
            raise InputError(
                f"the loss has weights to learn ({type(module).__name__}), which no stage trains;"
                f" make it part of the last stage"
            )


def refuse_unfrozen(stage: int, named: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Refuse weights that have no optimizer, as none of them learned, and learn now."""
    for name, weight in named:
        if weight.requires_grad:
            raise InputError(
                f"stage {stage} has no optimizer, as it was frozen when the pipeline was made,"
                f" and its weight {name} learns now; make the pipeline again"
            )


def _wrapper(module: nn.Module) -> str | None:
    kinds = [kind for kind in type(module).__mro__ if kind.__module__.startswith("torch.")]
    return next((kind.__name__ for kind in kinds if kind.__name__ in WRAPPERS), None)


def _modules_of(call: object) -> Iterator[nn.Module]:
    """The modules that a function is made of, as far as it shows."""
    if isinstance(call, nn.Module):
        yield call
    elif isinstance(call, partial):
        for one in (call.func, *call.args, *call.keywords.values()):
            yield from _modules_of(one)
    elif isinstance(owner := getattr(call, "__self__", None), nn.Module):
        yield owner


def copied(module: nn.Module, index: int) -> nn.Module:
    """Another copy of a stage, with the hooks of its weights."""
    for name, child in module.named_modules():
        if child._compiled_call_impl is not None:
            raise InputError(
                f"stage {index}, module {name or type(child).__name__} was compiled in place, which"
                f" a copy of it would not be, and this program needs one; use torch.compile(module)"
            )
    try:
        made = copy.deepcopy(module)
    except Exception as error:
        raise InputError(
            f"stage {index} cannot be copied, as this program needs: {error}; use a schedule with"
            f" one pipe"
        ) from error
    for (name, old), new in zip(module.named_parameters(), made.parameters(), strict=True):
        if old._post_accumulate_grad_hooks:
            raise InputError(
                f"stage {index}, weight {name} has a hook that sees the gradient as it adds up, and"
                f" this program adds it up in several copies; use a schedule with one pipe"
            )
        copy_hooks(old, new)
        keep_apart(old, new)
    return made


def copy_hooks(old: nn.Parameter, new: nn.Parameter) -> None:
    """Give a weight the hooks of the one that it stands in for."""
    if not old._backward_hooks:
        return
    is_learning = new.requires_grad
    new.requires_grad_()  # or it takes no hooks, which whole numbers never do
    for hook in old._backward_hooks.values():
        new.register_hook(hook)  # type: ignore[no-untyped-call]
    new.requires_grad_(is_learning)


def unshared(stages: Sequence[nn.Module]) -> tuple[list[nn.Module], set[int]]:
    """The stages, each with modules of its own, and which of them shared one.

    Weights stay shared. Where a stage is met with a module that an earlier one has, it gets a copy
    of it; what belongs to it alone stays the user's own.
    """
    seen: dict[int, int] = {}  # the first stage of each module
    made, sharing = [], set[int]()
    for index, stage in enumerate(stages):
        mine = {id(module) for module in stage.modules()}
        shared = {key for key in mine if seen.get(key, index) != index}
        sharing |= {index} | {seen[key] for key in shared} if shared else set()
        for key in mine:
            seen.setdefault(key, index)
        made.append(_with_own(stage, shared, {}))
    return made, sharing


def _with_own(module: nn.Module, shared: set[int], known: dict[int, nn.Module]) -> nn.Module:
    """A module in which every shared one is replaced by a copy, weights excepted."""
    if id(module) in known:
        return known[id(module)]
    found = known[id(module)] = twin_of(module) if id(module) in shared else module
    for name, child in found._modules.items():
        if child is not None:
            found._modules[name] = _with_own(child, shared, known)
    return found


def twin_of(module: nn.Module) -> nn.Module:
    """A copy of a module alone: the same weights and children, buffers of its own."""
    twin: nn.Module = object.__new__(type(module))
    vars(twin).update(vars(module))
    for name, value in vars(module).items():
        if isinstance(value, dict):
            vars(twin)[name] = copy.copy(value)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            twin._buffers[name] = buffer.clone()
    return twin


def entered(module: nn.Module, seen: set[int] | None = None) -> Iterator[nn.Module]:
    """A module and those within, but not what runs inside a compiled graph."""
    seen = set() if seen is None else seen
    if id(module) in seen:
        return
    seen.add(id(module))
    yield module
    if not is_compiled(module):
        for child in module.children():
            yield from entered(child, seen)


def is_compiled(module: nn.Module) -> bool:
    """Whether a module runs as one graph, in which no other module is called."""
    is_whole = "_orig_mod" in module._modules or isinstance(module, torch.jit.ScriptModule)
    return is_whole or module._compiled_call_impl is not None
