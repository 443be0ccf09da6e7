"""Materialising: tensors on meta get memory, and the values that their modules give them.

A module sets what is its own by `reset_parameters()`, or the user's `init` does, children before
the modules that they are part of, which may set them anew. Each draws by its own key. Memory is
first filled with values that nobody would choose, so that what nobody has set is found.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.runtime.initial.seeded import seeded
from weft.runtime.stage.modules import copy_hooks, twin_of


@dataclass(frozen=True)
class Setter:
    """Sets what modules have on a device: by the same seed the same, whichever process does.

    init  sets what is one module's own; None where `reset_parameters` does
    """

    device: torch.device
    seed: int
    init: Callable[[nn.Module], object] | None

    def set(self, module: nn.Module, key: str) -> None:
        """Set what is a module's own, as far as it is known how."""
        with torch.no_grad(), seeded(self.seed, key, self.device), self.device:
            if self.init is not None:
                self.init(module)
            elif (reset := _reset_of(module)) is not None:
                reset()


def materialise(
    stage: nn.Module, keys: Mapping[str, str], given: Collection[str], setter: Setter, where: str
) -> None:
    """Give all that is on meta memory, and values to all but what is given by others.

    keys   of the modules, by name
    given  names of tensors that others set afterwards
    where  what the stage is called in errors
    """
    lacking = {name for name, tensor in _named(stage) if tensor.is_meta and name not in given}
    setting = [(name, one) for name, one in stage.named_modules() if _sets(name, one, lacking)]
    give_memory(stage.named_modules(), setter.device, where)
    before = {name: (tensor, tensor._version) for name, tensor in _named(stage) if name in lacking}
    for name, module in reversed(setting):
        setter.set(module, keys[name])
    for name, tensor in _named(stage):
        if name in before and tensor is before[name][0] and _is_unset(*before[name]):
            refuse_unset(stage, name, where)


def drafted(module: nn.Module, name: str, key: str, setter: Setter, where: str) -> Tensor:
    """The value that a module on meta gives one of its own weights; it stays as it is."""
    twin = twin_of(module)
    vars(twin).update({key: [*value] for key, value in vars(twin).items() if type(value) is list})
    give_memory([("", twin)], setter.device, where)
    value = twin.get_parameter(name)
    version = value._version
    setter.set(twin, key)
    if value is twin.get_parameter(name) and _is_unset(value, version):
        refuse_unset(twin, name, where)
    return twin.get_parameter(name).detach()


def refuse_unset(stage: nn.Module, name: str, where: str) -> None:
    """Refuse a tensor of a stage that has no values, and that nobody can set."""
    owner, _, last = name.rpartition(".")
    kind = type(stage.get_submodule(owner)).__name__
    module = f", module {owner} ({kind})" if owner else f" ({kind})"
    raise InputError(
        f"{where}{module}: nothing sets {last}, which is on meta. Give the module a"
        f" reset_parameters() that does, or the stages an init= (weft.Stages); load it by initial=;"
        f" or give the stage as a function that returns the module"
    )


def give_memory(modules: Iterable[tuple[str, nn.Module]], device: torch.device, where: str) -> None:
    """Replace all tensors on meta that are the modules' own; what they share stays shared."""
    made: dict[int, Tensor] = {}
    kept = []  # or another tensor might get the id of one that is gone
    for path, module in modules:
        own = [*module._parameters.items(), *module._buffers.items()]
        for name, tensor in own:
            if tensor is not None and tensor.is_meta:
                kept.append(tensor)
                if id(tensor) not in made:
                    made[id(tensor)] = _with_memory(tensor, device)
                setattr(module, name, made[id(tensor)])  # some have lists of their weights as well
        for name, value in [*vars(module).items()]:
            if isinstance(value, Tensor) and value.is_meta:
                if id(value) not in made:
                    refuse_plain(f"{where}, module {path}" if path else where, name)
                setattr(module, name, made[id(value)])


def refuse_plain(where: str, name: str) -> None:
    raise InputError(
        f"{where} has a tensor on meta that is neither a weight nor a buffer: {name}; register it"
        f" as a buffer, or give the stage as a function that returns the module"
    )


def _with_memory(tensor: Tensor, device: torch.device) -> Tensor:
    made = torch.empty_like(tensor, device=device, requires_grad=False)
    if (value := _strange(tensor.dtype)) is not None:
        made.fill_(value)
    if not isinstance(tensor, nn.Parameter):
        return made
    weight = nn.Parameter(made, requires_grad=tensor.requires_grad)
    vars(weight).update(vars(tensor))
    copy_hooks(tensor, weight)
    return weight


def _strange(dtype: torch.dtype) -> float | int | None:
    """What nobody sets a tensor to; None where all is possible."""
    if dtype is torch.bool or (dtype.itemsize == 1 and dtype.is_floating_point):
        return None
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    limits = torch.iinfo(dtype)
    return limits.min or limits.max


def _is_unset(tensor: Tensor, version: int) -> bool:
    """Whether something of a tensor is as `_with_memory` has left it."""
    if not tensor.numel():
        return False
    strange = _strange(tensor.dtype)
    if strange is None:
        return tensor._version == version
    plain = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    if isinstance(strange, float):
        return bool(plain.amin().isnan())
    return strange in (int(plain.amin()), int(plain.amax()))


def _named(stage: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from stage.named_parameters()
    yield from stage.named_buffers()


def _sets(name: str, module: nn.Module, lacking: Collection[str]) -> bool:
    """Whether a module has to set its own tensors, or all those of its children anew."""
    within = f"{name}." if name else ""
    own = [*module._parameters, *module._buffers]
    if any(f"{within}{one}" in lacking for one in own):
        return True
    found = [f"{within}{one}" in lacking for one, _ in _named(module)]
    return bool(found) and all(found)


def _reset_of(module: nn.Module) -> Callable[[], Any] | None:
    for name in ("reset_parameters", "_reset_parameters"):  # the second is that of attention
        found: Callable[[], Any] | None = getattr(module, name, None)
        if callable(found):
            return found
    return None
