"""Optimizers and schedulers in a save: their state by the names of weights, whoever holds these.

save    an optimizer for each stage and tied weight: its groups of weights, what each weight
        has, and what its scheduler has
load    every optimizer here is made up of what the save has for its weights, which other
        optimizers may have had together or apart; of its tensors it takes the part that is here
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from weft.errors import InputError, SaveError
from weft.runtime.device.shards import is_sharded, like
from weft.runtime.saves.manifest import OPTIMIZER, SavePart
from weft.runtime.saves.packing import JSON, keys_in, pack, unpack
from weft.runtime.saves.parts import NamesOf, OptimizedParts, WeightState
from weft.runtime.saves.regions import Held, ReadTensor, Sizes, Wanted

UNSAVED = ("params", "param_names")  # of a group: weights, which have names of their own
BY_GROUP = {  # of a scheduler: an item for each group of its optimizer
    "base_lrs",
    "_last_lr",
    "lr_lambdas",
    "max_lrs",
    "base_momentums",
    "max_momentums",
    "min_lrs",
}


class Updater(NamedTuple):
    """An optimizer, and what changes its learning rate."""

    optimizer: Optimizer
    scheduler: LRScheduler | None


def packed_updater(
    updater: Updater, given: OptimizedParts, tensors: dict[str, Held]
) -> dict[str, JSON]:
    """What a save has of an optimizer and its scheduler; tensors are added to the others."""
    optimizer, scheduler = updater
    groups, state = [], {}
    for weight in optimizer.state:
        _names(weight, given.names)
    for group in optimizer.param_groups:
        names = [_names(weight, given.names)[0] for weight in group["params"]]
        options = {name: _plain(one) for name, one in group.items() if name not in UNSAVED}
        groups.append({"names": names, "options": pack(options, "an option", {})})
        for name, weight in zip(names, group["params"], strict=True):
            if weight in optimizer.state:
                found = dict[str, Tensor]()
                state[name] = pack(optimizer.state[weight], f"{OPTIMIZER}.{name}", found)
                tensors |= {key: given.held(weight, key, one) for key, one in found.items()}
    kept = None if scheduler is None else _plain(scheduler.state_dict())
    return {
        "type": type(optimizer).__name__,
        "groups": groups,
        "state": state,
        "scheduler": pack(kept, f"a {type(scheduler).__name__}", {}),
    }


class SavedWeight(NamedTuple):
    """A weight in a save: its optimizer, and the parameter group it is in."""

    name: str
    entry: dict[str, JSON]
    group: int

    @property
    def options(self) -> JSON:
        return self.entry["groups"][self.group]["options"]

    @property
    def state(self) -> JSON:
        return self.entry["state"].get(self.name)


class FoundWeight(NamedTuple):
    """A weight here, or a part of one, and what a save has for it.

    saved   of each optimizer that had it, or a part of it: they have the same options
    given   which part of the weight is here
    sizes   the shapes of all tensors of the save
    """

    saved: Sequence[SavedWeight]
    weight: nn.Parameter
    given: OptimizedParts
    sizes: Mapping[str, Sizes]

    @property
    def wanted(self) -> list[Wanted]:
        """The tensors that its state has."""
        return [*map(self._wanted, keys_in(self._state))]

    def state(self, read: ReadTensor) -> WeightState | None:
        """What the save has for it, as far as it is here; None where the optimizer had nothing."""
        found: WeightState | None = unpack(self._state, lambda key: self._taken(key, read))
        return found

    @property
    def _state(self) -> JSON:
        return next((one.state for one in self.saved if one.state is not None), None)

    def _wanted(self, key: str) -> Wanted:
        return key, self.given.wanted(self.weight, self.sizes[key]) if key in self.sizes else None

    def _taken(self, key: str, read: ReadTensor) -> Tensor:
        found, whole = read(self._wanted(key)).clone(), self.given.regions[self.weight].whole
        is_like = self.sizes[key] == whole and is_sharded(self.weight)
        return like(self.weight, found) if is_like else found


class SavedOptimizers:
    """The optimizers of a save, by the names of their weights."""

    def __init__(self, part: SavePart) -> None:
        self._aliases, self._weights = part.aliases, dict[str, list[SavedWeight]]()
        self._sizes = {key: tensor.shape for key, tensor in part.tensors.items()}
        for entry in part.optimizers:
            for index, group in enumerate(entry["groups"]):
                for name in group["names"]:
                    one = SavedWeight(name, entry, index)
                    self._weights.setdefault(name, []).append(one)

    def found(self, updater: Updater, given: OptimizedParts) -> ResumedOptimizer:
        """What the save has for an optimizer here; refuse what does not fit together."""
        groups = [
            [self._found(weight, given) for weight in group["params"]]
            for group in updater.optimizer.param_groups
        ]
        firsts = [[one and one.saved[0] for one in group] for group in groups]
        for group in groups:
            every = [saved for one in group if one is not None for saved in one.saved]
            _check(type(updater.optimizer).__name__, every)
        return ResumedOptimizer(updater, groups, _scheduled(updater, firsts))

    def _found(self, weight: nn.Parameter, given: OptimizedParts) -> FoundWeight | None:
        """A weight as it was in optimizers of the save, if it was in one."""
        names = (self._aliases.get(name, name) for name in _names(weight, given.names))
        saved = next((self._weights[name] for name in names if name in self._weights), None)
        if saved is None:
            return None
        return FoundWeight(saved, weight, given, self._sizes)


class ResumedOptimizer(NamedTuple):
    """An optimizer here, what a save has for its weights, by group, and for its scheduler."""

    updater: Updater
    groups: list[list[FoundWeight | None]]
    schedule: dict[str, Any] | None

    @property
    def wanted(self) -> list[Wanted]:
        """The tensors that it needs."""
        return [each for group in self.groups for one in group if one for each in one.wanted]

    def apply(self, read: ReadTensor) -> None:
        """Go on from the save; what was not in an optimizer there stays as it is."""
        optimizer, scheduler = self.updater
        groups, state, count = [], dict[int, Any](), 0
        for own, weights in zip(optimizer.param_groups, self.groups, strict=True):
            places = range(count, count + len(weights))
            count += len(weights)
            firsts = [one and one.saved[0] for one in weights]
            groups.append({**_options(own, firsts), "params": [*places]})
            for place, one in zip(places, weights, strict=True):
                found = None if one is None else one.state(read)
                if found is not None:
                    state[place] = found
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        made = [weight for group in optimizer.param_groups for weight in group["params"]]
        for place, kept in state.items():
            _retyped(optimizer.state[made[place]], kept)
        if scheduler is not None and self.schedule is not None:
            scheduler.load_state_dict(self.schedule)


def _retyped(taken: WeightState, saved: WeightState) -> None:
    """Give tensors their own types, where torch has given them that of their weight."""
    for name, one in saved.items():
        found = taken.get(name)
        if isinstance(one, Tensor) and isinstance(found, Tensor) and found.dtype != one.dtype:
            taken[name] = one.to(found.device)


def _check(kind: str, weights: Sequence[SavedWeight]) -> None:
    """Refuse weights of a group that cannot be one."""
    for one in weights:
        if one.entry["type"] != kind:
            raise SaveError(
                f"{one.name} was trained by {one.entry['type']}, and is by {kind} here: use the"
                f" same optimizer, or export the weights and begin anew with initial="
            )
        if one.options != weights[0].options:
            raise SaveError(
                f"{weights[0].name} and {one.name} are in one parameter group here, and were"
                f" trained with different options; group them as they were"
            )


def _options(own: dict[str, Any], weights: Sequence[SavedWeight | None]) -> dict[str, Any]:
    """The options of a group: those of the save, as tensors where they are tensors here."""
    made = {name: one for name, one in own.items() if name not in UNSAVED}
    saved = next((one for one in weights if one is not None), None)
    for name, one in (unpack(saved.options, _unread) if saved else {}).items():
        is_tensor = isinstance(made.get(name), Tensor)
        made[name] = torch.full_like(made[name], one) if is_tensor else one
    return made


def _scheduled(
    updater: Updater, groups: Sequence[Sequence[SavedWeight | None]]
) -> dict[str, Any] | None:
    """The state of a scheduler, for the groups of its optimizer; None leaves it as it is."""
    firsts = [next((one for one in group if one is not None), None) for group in groups]
    found = [one for one in firsts if one is not None and one.entry["scheduler"] is not None]
    if updater.scheduler is None or len(found) < len(groups):
        return None
    states = [unpack(one.entry["scheduler"], _unread) for one in found]
    return _merged(states, [one.group for one in found], found[0].name)


def _merged(states: Sequence[dict[str, Any]], groups: Sequence[int], name: str) -> dict[str, Any]:
    made = {}
    for key, value in states[0].items():
        if key in BY_GROUP and isinstance(value, list):
            pairs = zip(states, groups, strict=True)
            made[key] = [state[key][group] for state, group in pairs]
        elif key == "_schedulers":
            inner = zip(*(state[key] for state in states), strict=True)
            made[key] = [_merged(each, groups, name) for each in inner]
        elif all(state.get(key) == value for state in states):
            made[key] = value
        else:
            raise SaveError(
                f"the schedulers of weights that one optimizer has here, {name} among them, differ"
                f" in their {key}; cut the model as it was cut"
            )
    return made


def _names(weight: object, names_of: NamesOf) -> Sequence[str]:
    if not isinstance(weight, nn.Parameter) or weight not in names_of:
        raise InputError(
            "an optimizer keeps something for what is not a weight of its stage, and has no name in"
            " a save; make it of the weights that it is given, and keep its state by weight"
        )
    return names_of[weight]


def _plain(value: Any) -> Any:
    """Numbers in place of tensors that are one, which options may be."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, list):
        return [*map(_plain, value)]
    return {name: _plain(one) for name, one in value.items()} if type(value) is dict else value


def _unread(key: str) -> Tensor:
    raise SaveError(f"{key} is a tensor where a number belongs")
