"""Partition: which stage makes each call of a traced model.

No call reads what a later stage computes. Reading a weight, and what cannot travel and takes no
time (a device, a type), belongs to no stage: every stage does that for itself.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import fx, nn

from weft.errors import InputError
from weft.runtime.split.balance import starts_of
from weft.runtime.split.branches import SUBSTANCE, branched
from weft.runtime.split.trace import Trace, paths_of
from weft.runtime.split.traits import Traits

IN_PLACE = {
    getattr(operator, name)
    for name in ("iadd", "isub", "imul", "itruediv", "iand", "ior", "ixor", "ipow", "imatmul")
}


@dataclass(frozen=True)
class Partition:
    """The stage of every call; what has none is done by each stage that needs it."""

    stage_of: dict[fx.Node, int]
    count: int


@dataclass(frozen=True)
class Calls:
    """The calls of a traced model, in order, and what is known of them."""

    trace: Trace
    traits: Mapping[fx.Node, Traits]
    order: list[fx.Node]

    @classmethod
    def of(cls, trace: Trace, traits: Mapping[fx.Node, Traits]) -> Calls:
        """Of all nodes that a stage has to make."""
        nodes = trace.graph.nodes
        return cls(trace, traits, [node for node in nodes if not _is_for_all(node, traits[node])])

    def without_preludes(self) -> Calls:
        """Less what weighs nothing and is computed of inputs alone: each reader computes it."""
        light = self.weight * 1e-3
        before: dict[fx.Node, float] = {}
        kept = []
        for node in self.order:
            weight = self.traits[node].weight + sum(before.get(n, 0) for n in node.all_input_nodes)
            is_of_inputs = all(n in before or n.op == "placeholder" for n in node.all_input_nodes)
            is_plain = node.op != "call_module" and not self.traits[node].draws
            if is_of_inputs and is_plain and weight <= light and changed_by(self, node) is None:
                before[node] = weight
            else:
                kept.append(node)
        return Calls(self.trace, self.traits, kept)

    @property
    def weight(self) -> float:
        return sum(one.weight for one in self.traits.values())

    def cut(self, nodes: Sequence[fx.Node], parts: int) -> list[int] | None:
        """Where parts of some of the calls begin, if they can be cut as often."""
        weights = [self.traits[node].weight for node in nodes]
        return starts_of(weights, _crossing(self, nodes), parts)


def evenly(calls: Calls, stages: int) -> Partition:
    """Consecutive calls, of about the same weight."""
    starts = calls.cut(calls.order, stages)
    if starts is None:
        raise InputError(
            f"{type(calls.trace.model).__name__} makes {len(calls.order)} calls, which cannot be"
            f" cut into {stages} stages; ask for fewer"
        )
    return _settled(calls, _numbered([calls.order], [starts]), stages)


def by_names(calls: Calls, cuts: Sequence[str]) -> Partition:
    """Consecutive calls; each of the named modules begins a stage."""
    first = _first_calls(calls, cuts)
    starts = sorted({0, *(calls.order.index(node) for node in first.values())})
    if len(starts) != len(cuts) + 1:
        raise InputError(
            f"cuts {[*cuts]} make {len(starts)} stages of {type(calls.trace.model).__name__}: two"
            f" of them begin at the same call, or one at the first; leave that out"
        )
    stage_of = _numbered([calls.order], [starts])
    return _settled(calls, stage_of, len(starts))


def branches_by_names(calls: Calls, cuts: Sequence[str]) -> Partition:
    """Each of the named modules is a stage; any other call goes with the latest that it reads."""
    _first_calls(calls, cuts)
    stage_of: dict[fx.Node, int] = {}
    number: dict[str, int] = {}
    for node in calls.order:
        latest = max((stage_of.get(read, 0) for read in reads_of(node, stage_of)), default=0)
        named = [path for path in paths_of(node) if path in cuts]
        own = number.setdefault(named[-1], len(number) + 1) if named else 0
        stage_of[node] = max(latest, own)
    used = sorted(set(stage_of.values()))
    stage_of = {node: used.index(stage) for node, stage in stage_of.items()}
    return _settled(calls, stage_of, len(used))


def by_branches(calls: Calls, stages: int) -> Partition:
    """Stem, branches and head, each cut into as many stages as its weight asks for."""
    least = SUBSTANCE * calls.weight / stages
    weights = {node: calls.traits[node].weight for node in calls.order}
    groups = branched(_live(calls), weights, least)
    name = type(calls.trace.model).__name__
    if all(len(group) == 1 for group in groups):
        raise InputError(
            f"{name} has no two branches that each weigh half of what a stage of {stages} weighs on"
            f" average; name them by cuts=[...], or leave out branches=True"
        )
    _view_last(calls, groups)
    parts = [part for group in groups for part in group]
    if len(parts) > stages:
        parts = _merged(groups, weights, least)
    if len(parts) > stages:
        shares = [f"{sum(weights[node] for node in part) / calls.weight:.0%}" for part in parts]
        raise InputError(
            f"{name} falls apart into {len(parts)} parts that run at the same time or after each"
            f" other, of {', '.join(shares)} of its weight; ask for at least {len(parts)} stages"
        )
    starts = _distributed(calls, parts, stages)
    return _settled(calls, _numbered(parts, starts), stages)


def _view_last(calls: Calls, groups: Sequence[list[list[fx.Node]]]) -> None:
    """Let what follows branches take views of their values: so these travel with rows first."""
    for group, following in pairwise(groups):
        for part in group if len(following) == 1 else []:
            while len(part) > 1 and calls.traits[part[-1]].is_view:
                following[0].insert(0, part.pop())


def _merged(
    groups: Sequence[Sequence[list[fx.Node]]], weights: Mapping[fx.Node, float], least: float
) -> list[list[fx.Node]]:
    """All parts; one that joins branches and weighs nothing goes with the last of them."""
    parts: list[list[fx.Node]] = []
    for group in groups:
        is_light = len(group) == 1 and sum(weights[node] for node in group[0]) < least / 10
        if parts and is_light:
            parts[-1] = [*parts[-1], *group[0]]
        else:
            parts += group
    return parts


def _distributed(calls: Calls, parts: Sequence[list[fx.Node]], stages: int) -> list[list[int]]:
    """Where the stages of each part begin: each time, the heaviest gets one more."""
    starts = [[0] for _ in parts]
    weights = [sum(calls.traits[node].weight for node in part) for part in parts]
    for _ in range(stages - len(parts)):
        by_weight = sorted(range(len(parts)), key=lambda one: -weights[one] / len(starts[one]))
        for one in by_weight:
            more = calls.cut(parts[one], len(starts[one]) + 1)
            if more is not None:
                starts[one] = more
                break
        else:
            raise InputError(f"the model cannot be cut into {stages} stages; ask for fewer")
    return starts


def _numbered(
    parts: Sequence[Sequence[fx.Node]], starts: Sequence[Sequence[int]]
) -> dict[fx.Node, int]:
    """The stage of each node, where parts follow each other, and each is cut at its starts."""
    stage_of, before = {}, 0
    for part, places in zip(parts, starts, strict=True):
        for index, node in enumerate(part):
            stage_of[node] = before + sum(place <= index for place in places) - 1
        before += len(places)
    return stage_of


def _settled(calls: Calls, stage_of: dict[fx.Node, int], count: int) -> Partition:
    """The partition with calls that have to be where another one is."""
    for node in calls.order:
        latest = max((stage_of[read] for read in reads_of(node, stage_of)), default=0)
        is_number = not calls.traits[node].bytes and node.op != "call_module"
        is_item = node.target is operator.getitem and bool(reads_of(node, stage_of))
        if is_number or is_item or node not in stage_of:
            stage_of[node] = latest  # less travels so; what is not there yet is read by nobody
    return Partition(stage_of, count)


def reads_of(node: fx.Node, stage_of: Mapping[fx.Node, int]) -> list[fx.Node]:
    """What a call reads of stages, also through what each stage does for itself."""
    found: list[fx.Node] = []
    for read in node.all_input_nodes:
        if read in stage_of:
            found.append(read)
        elif read.op != "placeholder":
            found += reads_of(read, stage_of)
    return found


def _first_calls(calls: Calls, cuts: Sequence[str]) -> dict[str, fx.Node]:
    """The first call of each named module."""
    first: dict[str, fx.Node] = {}
    for node in calls.order:
        for path in paths_of(node):
            first.setdefault(path, node)
    for name in cuts:
        if name not in first:
            raise InputError(_missing(calls.trace.model, name, [*first]))
    return {name: first[name] for name in cuts}


def _missing(model: nn.Module, name: str, known: Sequence[str]) -> str:
    if name not in dict(model.named_modules()):
        shown = ", ".join([path for path in known if "." not in path][:8])
        return f"cuts: {type(model).__name__} has no module {name}; it has {shown}"
    outer = [path for path in known if name.startswith(f"{path}.")]
    why = f"it lies in {outer[-1]}, which is kept whole" if outer else "the model does not call it"
    return f"cuts: no stage can begin at {name}: {why}; name another module"


def _live(calls: Calls) -> list[fx.Node]:
    """The calls on which the output depends."""
    live: set[fx.Node] = set()
    for node in reversed(calls.trace.graph.nodes):
        if node.op == "output" or any(user in live for user in node.users):
            live.add(node)
    return [node for node in calls.order if node in live]


# where no cut can be


def _crossing(calls: Calls, nodes: Sequence[fx.Node]) -> list[float]:
    """The bytes that cross a cut before each node; infinite where it would change a result."""
    place = {node: index for index, node in enumerate(nodes)}
    steps = [0.0] * (len(nodes) + 1)
    closed: list[tuple[int, int]] = []
    for index, node in enumerate(nodes):
        one = calls.traits[node]
        last = max((place.get(user, len(nodes) - 1) for user in _readers(node)), default=index)
        steps[min(index + 1, len(nodes))] += one.bytes
        steps[last + 1] -= one.bytes
        if not one.travels:
            closed.append((index, last))
        closed += _kept_together(calls, node, place)
    crossing = [*accumulate(steps[:-1])]
    for first, last in closed:
        crossing[first + 1 : last + 1] = [math.inf] * (last - first)
    return crossing


def _readers(node: fx.Node) -> list[fx.Node]:
    return [user for user in node.users if user.op != "output"]


def _kept_together(
    calls: Calls, node: fx.Node, place: Mapping[fx.Node, int]
) -> list[tuple[int, int]]:
    """From where to where calls see what this one changes in place, if there are others."""
    target = changed_by(calls, node)
    if target is None or (target.op.startswith("call_") and len(target.users) == 1):
        return []
    if target in place:
        return [(place[target], place[node])]
    same = [one for one in calls.trace.graph.nodes if one.target == target.target]
    seeing = [place[user] for one in same for user in one.users if user in place]
    return [(min(seeing), max(seeing))]


def changed_by(calls: Calls, node: fx.Node) -> fx.Node | None:
    """What a call changes in place."""
    first = node.args[0] if node.args else None
    if not isinstance(first, fx.Node):
        return None
    target: Any = node.target
    is_changing = (
        (node.op == "call_method" and target.endswith("_") and not target.endswith("__"))
        or (node.op == "call_function" and target in IN_PLACE)
        or bool(node.kwargs.get("inplace"))
        or (isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable)
        or (node.op == "call_module" and bool(getattr(calls.trace.part(target), "inplace", False)))
    )
    return first if is_changing else None


def _is_for_all(node: fx.Node, one: Traits) -> bool:
    """Whether every stage does it for itself."""
    is_plain = node.op in ("call_function", "call_method")
    is_small = is_plain and not one.travels and not one.bytes
    return not node.op.startswith("call_") or is_small
