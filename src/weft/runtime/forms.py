"""Forms: the shapes and types of all values that pass between stages, without computing any.

The stages run once on meta tensors for each size of microbatch: no memory, no randomness, no
buffer is touched.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.ir.graph import Graph
from weft.ir.kinds import Direction
from weft.runtime.transport import Message
from weft.runtime.world import Form


class Forms:
    """Forms of every message of a step."""

    def __init__(self, stages: Sequence[nn.Module], graph: Graph) -> None:
        self._graph = graph
        self._stages = [copy.deepcopy(stage).to("meta") for stage in stages]
        self._known: dict[tuple[Form, ...], list[tuple[Form, ...]]] = {}
        self._inputs: Sequence[tuple[Tensor, ...]] = ()

    def begin(self, inputs: Sequence[tuple[Tensor, ...]]) -> None:
        """Take the inputs of a step's microbatches."""
        self._inputs = inputs

    def of(self, message: Message) -> list[Form | None]:
        """Forms of a message; a value that has no gradient has none on the way back."""
        source, _ = self._graph.edges[message.edge]
        key = tuple(Form(tuple(t.shape), t.dtype) for t in self._inputs[message.microbatch])
        if key not in self._known:
            self._known[key] = self._outputs(key)
        forms = self._known[key][source]
        if message.direction is Direction.ACTIVATION:
            return list(forms)
        return [form if form.dtype.is_floating_point else None for form in forms]

    def _outputs(self, inputs: tuple[Form, ...]) -> list[tuple[Form, ...]]:
        values: list[tuple[Tensor, ...]] = []
        first = tuple(torch.empty(f.shape, dtype=f.dtype, device="meta") for f in inputs)
        for index, stage in enumerate(self._stages):
            before = [v for other in self._graph.predecessors[index] for v in values[other]]
            try:
                with torch.no_grad():
                    out = stage(*(before or first))
            except Exception as error:
                shapes = [tuple(value.shape) for value in before or first]
                raise InputError(
                    f"stage {index} does not take inputs of {shapes}: {error}"
                ) from error
            values.append(out if isinstance(out, tuple) else (out,))
        return [tuple(Form(tuple(v.shape), v.dtype) for v in outputs) for outputs in values]
