"""Extra state: what modules keep besides tensors, and say of themselves by `get_extra_state`.

Saved as JSON, its tensors among the others; what is neither is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from weft.errors import InputError
from weft.runtime.device.shards import is_sharded
from weft.runtime.initial.blueprint import joined
from weft.runtime.saves.manifest import EXTRA
from weft.runtime.saves.packing import JSON, pack
from weft.runtime.saves.regions import Held
from weft.runtime.weights.ties import End

EXTRA_STATE = "_extra_state"  # as a state_dict has it, after the name of the module


def with_extra_state(module: nn.Module, stage: int) -> Iterator[tuple[End, nn.Module]]:
    """The modules of a stage that have extra state, and what that is called there."""
    for name, one in module.named_modules():
        if type(one).get_extra_state is not nn.Module.get_extra_state:
            yield End(stage, joined(name, EXTRA_STATE)), one


def packed_extra(module: nn.Module, name: str, tensors: dict[str, Held]) -> JSON:
    """What a save has of a module's extra state; tensors are added to the others."""
    if type(module).set_extra_state is nn.Module.set_extra_state:
        raise InputError(
            f"{name}: {type(module).__name__} has get_extra_state, and no set_extra_state by which"
            f" it could take that back from a save; add one"
        )
    found = dict[str, Tensor]()
    made = pack(module.get_extra_state(), f"{EXTRA}.{name}", found)
    for key, tensor in found.items():
        if is_sharded(tensor):
            raise InputError(f"{key} is a DTensor, which only weights and buffers may be in a save")
        tensors[key] = Held.of(tensor, is_alike=False)
    return made
