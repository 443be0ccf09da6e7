"""A model traced by torch.export: down to operators, whatever its forward traits like.

What the example decides is decided: the path through the forward, and sizes, but for the first
dimension of every tensor, where the model allows any.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from weft.errors import InputError
from weft.runtime.split.attributes import Attributes
from weft.runtime.split.inputs import Inputs
from weft.runtime.stage.randomness import drawn_from, others_states


class Exported(NamedTuple):
    """The graph of operators.

    owner   has what the graph reads and the model does not
    rows    by input, the only size of its first dimension, where it has to be that of the example
    packed  makes the model's output of what the graph returns
    """

    graph: fx.Graph
    owner: nn.Module
    rows: dict[str, int]
    packed: Callable[[Any], Any]


def graph_by_export(model: nn.Module, inputs: Inputs) -> Exported:
    """The operators of a model in its present mode."""
    dims = {name: _dynamic(value) for name, value in inputs.arguments.items()}
    attributes = {name: Attributes(module) for name, module in model.named_modules()}
    others = others_states()
    try:
        program = torch.export.export(
            model, (), inputs.arguments, dynamic_shapes=dims, strict=False
        )
    except Exception as error:
        raise InputError(
            f"{type(model).__name__} cannot be exported by torch.export: {error}; give a list of"
            f" modules, one per stage"
        ) from error
    finally:
        changed = [name for name, one in attributes.items() if one.restored()]
    if changed:
        raise InputError(
            f"the forward of {changed[0] or type(model).__name__} changes attributes of its own,"
            f" which no operator does; keep such state in buffers, or give a list of modules"
        )
    whose = drawn_from(others)
    if whose is not None:
        raise InputError(
            f"{type(model).__name__} draws from {whose}, which would be drawn once, by the example;"
            f" draw from torch, and let no path depend on it"
        )
    module: Any = program.module()
    graph: fx.Graph = module.graph
    places = [node for node in graph.nodes if node.op == "placeholder"]
    _, named = pytree.tree_unflatten(places, module._in_spec)
    rows: dict[str, int] = {}
    for name, tree in named.items():
        fixed = [size for leaf in pytree.tree_leaves(tree) if (size := _fixed_rows(leaf))]
        if fixed:
            rows[name] = fixed[0]
        _renamed(graph, name, tree)
    spec = module._out_spec
    return Exported(graph, module, rows, lambda flat: pytree.tree_unflatten(flat, spec))


def _dynamic(value: Any) -> Any:
    """Any number of rows, wherever there are rows."""

    def dims(leaf: Any) -> Any:
        return {0: torch.export.Dim.AUTO} if isinstance(leaf, Tensor) and leaf.dim() else None

    return pytree.tree_map(dims, value)


def _fixed_rows(place: fx.Node) -> int | None:
    value = place.meta.get("val")
    if not isinstance(value, Tensor) or not value.dim():
        return None
    rows: Any = value.shape[0]
    found: int | None = rows if isinstance(rows, int) else rows.node.maybe_as_int()
    return found


def _renamed(graph: fx.Graph, name: str, tree: Any) -> None:
    """One placeholder for each input, whatever it is made of."""
    paths, _ = pytree.tree_flatten_with_path(tree)
    with graph.inserting_before(paths[0][1]):
        whole = graph.placeholder(name)
    for path, leaf in paths:
        value = whole
        with graph.inserting_before(_after(graph)):
            for key in path:
                value = graph.call_function(operator.getitem, (value, _key(key)))
        leaf.replace_all_uses_with(value)
        graph.erase_node(leaf)


def _after(graph: fx.Graph) -> fx.Node:
    """The first node that computes."""
    free = ("placeholder", "get_attr")
    found: fx.Node = next(node for node in graph.nodes if node.op not in free)
    return found


def _key(key: Any) -> Any:
    return key.key if isinstance(key, pytree.MappingKey) else key.idx
