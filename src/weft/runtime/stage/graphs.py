"""The graphs that forwards leave: what they end in, and whether a backward starts others.

A stage that learns by a tensor which is none of its parameters is refused: the gradient would be
added where nobody looks for it, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd.graph import GradientEdge

from weft.errors import InputError

Root: TypeAlias = Tensor | GradientEdge  # where a backward begins

REENTRANT = "CheckpointFunctionBackward"
FORWARDS = 2  # that are looked at: what is foreign in both is no value of one of them


class Graphs:
    """Looks at the graphs of a stage's first forwards.

    `is_reentrant` where a checkpoint runs backwards of its own, each of which adds to the weights.
    """

    def __init__(self, stage: int) -> None:
        self._stage, self._looks, self.is_reentrant = stage, 0, False
        self.are_known = False  # whether enough of them were looked at
        self._found: list[Tensor] = []

    def check(
        self, outputs: Sequence[Tensor], known: Sequence[Tensor], *, is_complete: bool = True
    ) -> None:
        """Refuse a graph that ends in a weight which is not known, where these are all."""
        self._looks += 1
        self.are_known = self._looks >= FORWARDS
        own = {id(tensor) for tensor in known}
        nodes = [*nodes_of(outputs)]
        self.is_reentrant |= any(type(node).__name__ == REENTRANT for node in nodes)
        leaves = [node.variable for node in nodes if hasattr(node, "variable")]
        strange = [leaf for leaf in leaves if is_complete and id(leaf) not in own]
        for leaf in strange:
            is_seen_before = any(leaf is other for other in self._found)
            if isinstance(leaf, nn.Parameter) or is_seen_before:
                raise InputError(
                    f"stage {self._stage}, or the loss that it ends with, uses a tensor of shape"
                    f" {list(leaf.shape)} that requires a gradient and is no parameter of that"
                    f" stage; register it in every stage that uses it: what several stages share"
                    f" is kept equal"
                )
        self._found = strange if not self.are_known else []


def nodes_of(outputs: Sequence[Tensor]) -> Iterator[Any]:
    """All nodes of the graphs of some tensors."""
    nodes: list[Any] = [value.grad_fn for value in outputs if value.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)


def run_backward(outputs: Sequence[Root], grads: Sequence[Tensor]) -> None:
    """As torch.autograd.backward, whose checks in Python take longer than a small stage."""
    Variable._execution_engine.run_backward(
        tuple(outputs), tuple(grads), False, False, (), allow_unreachable=True, accumulate_grad=True
    )
