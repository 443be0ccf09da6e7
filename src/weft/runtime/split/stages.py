"""Stages: what a model was cut into, and what passes between them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import nn

from weft.errors import InputError
from weft.ir.graph import Graph
from weft.runtime.stage.values import Carries


class Stages(list[nn.Module]):
    """The stages of a model, in its order.

    graph    the edges between them, where values skip stages or the model branches; None where
             they are those of the program, a chain as a rule
    carries  by edge, the names of what travels along it, of the dict that its source returns;
             all that the source returns, where an edge is not listed
    init     sets the weights and buffers of one module, without those of its children; None where
             `reset_parameters` does
    loss     the model's own, of what the last stage returns and a target; None where it has none
    model    of transformers, without its parts, which knows how its checkpoints are read; None for
             stages of any other
    checked  what was compared with the whole model: "by value", "by shape", "not compared"
    """

    def __init__(
        self,
        stages: Iterable[nn.Module],
        *,
        graph: Graph | None = None,
        carries: Carries | None = None,
        init: Callable[[nn.Module], object] | None = None,
        loss: Callable[..., Any] | None = None,
        model: nn.Module | None = None,
    ) -> None:
        super().__init__(stages)
        self.graph = graph
        self.carries: Carries = dict(carries or {})
        self.init, self.loss, self.model = init, loss, model
        self.checked = "not compared"
        if graph is not None and len(graph) != len(self):
            raise InputError(f"a graph of {len(graph)} stages for {len(self)} modules")
        edges = (graph or Graph.chain(len(self))).edges
        strange = [edge for edge in self.carries if edge not in edges]
        if strange:
            raise InputError(f"{strange[0]} carries something and is not an edge of the graph")

    @classmethod
    def of(cls, stages: Sequence[nn.Module]) -> Stages:
        """Stages as they are, or of a plain list."""
        return stages if isinstance(stages, cls) else cls(stages)

    def with_modules(self, modules: Iterable[nn.Module]) -> Stages:
        """The same with other modules."""
        made = copy.copy(self)
        made[:] = modules
        return made


def loss_for(stages: Sequence[nn.Module], given: Callable[..., Any] | None) -> Callable[..., Any]:
    """The loss that a user gives, or else the model's own."""
    found = Stages.of(stages).loss if given is None else given
    if found is None:
        raise InputError("no loss is given, and the stages have none of their own; give loss=")
    return found
