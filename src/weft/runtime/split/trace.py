"""Trace: a model as graphs of calls, one for each mode that it can be in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn

from weft.errors import InputError
from weft.runtime.split.exported import Exported, graph_by_export
from weft.runtime.split.inputs import Inputs
from weft.runtime.split.tracer import Opens, Untraced, constants_of, graph_by_modules

Part: TypeAlias = Tensor | nn.Module


@dataclass
class Trace:
    """A model as a graph.

    graph   all calls, in order
    is_training  the mode in which they are made
    other   the calls in the other mode; None where they are no selection of those
    same    by node of `other`, the node of `graph`
    parts   by name, modules and tensors that the graphs read, and the model does not have
    rows    by input, the only size of its first dimension that the graph can take
    packed  makes the model's output of what the graph returns
    """

    model: nn.Module
    inputs: Inputs
    graph: fx.Graph
    is_training: bool
    other: fx.Graph | None = None
    same: dict[fx.Node, fx.Node] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    packed: Callable[[Any], Any] | None = None

    def part(self, name: str) -> Part:
        """A module or tensor that a node reads."""
        if name in self.parts:
            return self.parts[name]
        path, _, attribute = name.rpartition(".")
        found = getattr(self.model.get_submodule(path), attribute)
        assert isinstance(found, Tensor | nn.Module)
        return found

    def nodes(self) -> Iterator[fx.Node]:
        """All nodes of both graphs."""
        yield from self.graph.nodes
        yield from self.other.nodes if self.other is not None else ()


def by_modules(model: nn.Module, inputs: Inputs, opens: Opens) -> Trace:
    """A model as calls of its modules, which are opened where `opens` says so, or must be whole."""
    whole = set[str]()
    found: dict[bool, fx.Graph] = {}
    parts: dict[str, Part] = {}
    count = -1
    while count != len(whole):  # what one mode needs whole has to be so in the other
        count = len(whole)
        for is_training in (True, False):
            with _in_mode(model, is_training):
                try:
                    found[is_training] = graph_by_modules(model, inputs, opens, whole)
                except Untraced as error:
                    if is_training == model.training:
                        raise InputError(
                            f"{type(model).__name__} cannot be followed through its modules:"
                            f" {error}"
                        ) from error
                finally:
                    constants = constants_of(model)
                if is_training in found:
                    parts |= _claimed(found[is_training], model, constants, is_training)
    return _joined(Trace(model, inputs, *_main(found, model), parts=parts), found)


def by_export(model: nn.Module, inputs: Inputs) -> Trace:
    """A model as operators."""
    found: dict[bool, Exported] = {}
    parts: dict[str, Part] = {}
    for is_training in (True, False):
        with _in_mode(model, is_training):
            try:
                made = found[is_training] = graph_by_export(model, inputs)
            except InputError:
                if is_training == model.training:
                    raise
                continue
        _name_by_first(made.graph, model)
        parts = {**_claimed(made.graph, model, made.owner, is_training), **parts}
    graphs = {mode: made.graph for mode, made in found.items()}
    graph, is_training = _main(graphs, model)
    own = found[is_training]
    trace = Trace(model, inputs, graph, is_training, parts=parts, rows=own.rows, packed=own.packed)
    return _joined(trace, graphs)


def _name_by_first(graph: fx.Graph, model: nn.Module) -> None:
    """Read tied weights by the first of their names."""
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        names[name] = first.setdefault(id(weight), name)
    for node in graph.nodes:
        if node.op == "get_attr":
            node.target = names.get(node.target, node.target)


def _main(found: dict[bool, fx.Graph], model: nn.Module) -> tuple[fx.Graph, bool]:
    """The graph that is cut: that of training, which has all nodes, if there is one."""
    is_training = True if True in found else model.training
    return found[is_training], is_training


def _joined(trace: Trace, found: dict[bool, fx.Graph]) -> Trace:
    """The trace with both modes; with the model's own alone, where they differ too much."""
    other = found.get(not trace.is_training)
    same = None if other is None else _matched(trace.graph, other)
    if same is not None:
        trace.other, trace.same = other, same
    elif trace.is_training != trace.model.training:
        trace.graph, trace.is_training = found[trace.model.training], trace.model.training
    return trace


def _matched(graph: fx.Graph, other: fx.Graph) -> dict[fx.Node, fx.Node] | None:
    """The node that each one of `other` is, if those that it leaves out are read by nobody."""
    same: dict[fx.Node, fx.Node] = {}
    rest = iter([node for node in graph.nodes if node.op != "get_attr"])
    for node in other.nodes:
        if node.op == "get_attr":
            continue
        for mine in rest:
            if (mine.op, mine.target) == (node.op, node.target):
                same[node] = mine
                break
            if mine.users:
                return None
        else:
            return None
    return same if not any(mine.users for mine in rest) else None


@contextmanager
def _in_mode(model: nn.Module, is_training: bool) -> Iterator[None]:
    """The model in a mode; in its own, modules that are in another one stay there."""
    modes = [(module, module.training) for module in model.modules()]
    if is_training != model.training:
        model.train(is_training)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _claimed(
    graph: fx.Graph, model: nn.Module, owner: nn.Module | dict[str, Tensor], is_training: bool
) -> dict[str, Part]:
    """What a graph reads that is no weight, buffer or module of the model, under other names."""
    known = {name for name, _ in model.named_modules(remove_duplicate=False)}
    known |= {name for name, _ in model.named_parameters(remove_duplicate=False)}
    known |= {name for name, _ in model.named_buffers(remove_duplicate=False)}
    found: dict[str, Part] = {}
    for node in graph.nodes:
        if node.op not in ("get_attr", "call_module") or node.target in known:
            continue
        value = _looked_up(owner, model, node.target)
        if not isinstance(value, Tensor | nn.Module):
            raise InputError(
                f"{type(model).__name__} uses {node.target}, a {type(value).__name__}, which no"
                f" stage can hold"
            )
        if node.op == "get_attr":  # what is called is the same in both modes: checks of sizes
            mode = "training" if is_training else "evaluation"
            node.target = f"{node.target.replace('.', '_')}_of_{mode}"
        found[node.target] = value.detach() if isinstance(value, Tensor) else value
    return found


def _looked_up(owner: nn.Module | dict[str, Tensor], model: nn.Module, name: str) -> Any:
    if isinstance(owner, dict) and name in owner:
        return owner[name]
    value: Any = model if isinstance(owner, dict) else owner
    for attribute in name.split("."):
        value = getattr(value, attribute)
    return value


def owner_of(node: fx.Node) -> str:
    """The innermost module in which a call is made."""
    return next(reversed(paths_of(node)), "")


def paths_of(node: fx.Node) -> list[str]:
    """The modules in which a call is made, the outermost first; at last the called module."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path.removeprefix("L['self'].") for path, _ in stack.values()]
    found = [path for path in paths if path and not path.startswith("_empty_nn_module_stack")]
    if node.op == "call_module" and str(node.target) not in found:
        found.append(str(node.target))
    return found


def is_on_meta(model: nn.Module) -> bool:
    """Whether a model has shapes and no values."""
    return any(tensor.device == torch.device("meta") for tensor in model.parameters())
