"""Functions that draw, made modules, so that what they draw does not depend on the cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import fx, nn

from weft.runtime.split.trace import Part, Trace, owner_of
from weft.runtime.split.traits import Traits
from weft.runtime.stage.modules import unshared


class Drawing(nn.Module):
    """A function or method that draws; its name in the whole model is its key."""

    def __init__(self, target: Any, *, is_method: bool) -> None:
        super().__init__()
        self._target, self._is_method = target, is_method

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_method:
            return getattr(args[0], self._target)(*args[1:], **kwargs)
        return self._target(*args, **kwargs)


def with_drawing_modules(trace: Trace, traits: Mapping[fx.Node, Traits]) -> None:
    """Give every call that draws a name of its own, in both graphs: its key in the whole model.

    A function becomes a module of the one that calls it, the second call of a module another one.
    """
    counts: Counter[str] = Counter()
    others = {mine: other for other, mine in trace.same.items()}
    for node in trace.graph.nodes:
        if not traits[node].draws or not node.op.startswith("call_"):
            continue
        is_module = node.op == "call_module"
        name = str(node.target) if is_module else f"{owner_of(node)}.draw".removeprefix(".")
        counts[name] += 1
        if is_module and counts[name] == 1:
            continue
        path = f"{name}@{counts[name]}"
        trace.parts[path] = _twin(trace.part(name)) if is_module else _drawing(node)
        for one in (node, others.get(node)):
            if one is not None:
                one.op, one.target = "call_module", path


def _twin(part: Part) -> nn.Module:
    """The same weights, in modules that have names of their own."""
    assert isinstance(part, nn.Module)
    (_, twin), _ = unshared([part, part])
    return twin


def _drawing(node: fx.Node) -> Drawing:
    return Drawing(node.target, is_method=node.op == "call_method")
