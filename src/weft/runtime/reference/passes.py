"""Passes: the loss of one microbatch, and the gradient of every weight in every stage.

in_one_graph    the whole model forward, and loss.backward(): forward and backward use the same
                weights, or the backward finds others in place of those that autograd saved
stage_by_stage  each stage backward by itself, some of them run again with the weights of the
                backward: where they differ from those of the forward and stages are recomputed
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.ir.graph import Backward
from weft.runtime.losses import refuse_constant
from weft.runtime.reference.model import Microbatch, WholeModel, added
from weft.runtime.reference.weights import ByUse
from weft.runtime.stage.cast import cast_from, without_autocast
from weft.runtime.stage.deferred import hooked
from weft.runtime.stage.values import Structure, Value, contiguous, spread


class PassWeights(NamedTuple):
    """What stages compute with in each direction, mostly the same."""

    forward: ByUse
    backward: ByUse


def in_one_graph(
    model: WholeModel, one: Microbatch, weights: PassWeights, scale: float
) -> tuple[Tensor, ByUse]:
    """The loss of a microbatch, and its gradients, enlarged by the scale."""
    leaves = weights.forward
    with _swapping(model, *weights), model.running(one) as drawn:
        loss = model.loss(model.output(one, leaves), one)
    if model.graph.stages[-1].backward is not Backward.NONE:
        refuse_constant(loss)
    with model.draw.backward(drawn), without_autocast(model.device), model.holding(leaves):
        gradients = collected(leaves, [(loss * scale, None)]) if loss.requires_grad else {}
    return loss.detach(), gradients


def stage_by_stage(
    model: WholeModel,
    one: Microbatch,
    weights: PassWeights,
    scale: float,
    is_recomputed: Callable[[int], bool],
) -> tuple[Tensor, ByUse]:
    """The same, where some stages are recomputed with the weights of the backward."""
    run = _StageByStage(model, one, weights, is_recomputed)
    loss = run.forward()
    total: ByUse = {}
    for index in reversed(range(len(model.stages))):
        total |= run.backward(index, scale)
    return loss, total


class _StageByStage:
    """A microbatch under way: what its stages were given, and the gradients between them."""

    def __init__(
        self,
        model: WholeModel,
        one: Microbatch,
        weights: PassWeights,
        is_recomputed: Callable[[int], bool],
    ) -> None:
        self._model, self._one, self._weights = model, one, weights
        self._is_recomputed = is_recomputed
        self._given: list[list[Value]] = []  # by stage
        self._buffers: list[dict[str, Tensor]] = []  # by stage, as its forward found them
        self._returned: dict[int, Structure] = {}  # by stage
        self._gradients: dict[tuple[int, int], Sequence[Tensor | None]] = {}  # by edge

    def forward(self) -> Tensor:
        """The loss; every stage from values without a history, which its backward starts from."""
        model, values, number = self._model, dict[int, Value](), self._one.number
        out: Any = None
        with model.running(self._one):
            for index, stage in enumerate(model.stages):
                edges = [(other, index) for other in model.graph.predecessors[index]]
                given = [
                    model.crossings.of(edge, number).value(
                        values[edge[0]].picked(model.carries.get(edge))
                    )
                    for edge in edges
                ]
                self._given.append(given or [model.copied(self._one.inputs)])
                self._buffers.append({n: b.clone() for n, b in stage.named_buffers()})
                out = self._called(index, self._weights.forward)
                if model.graph.successors[index]:
                    values[index] = apart(model.returned(index, out).cloned())
                    self._returned[index] = values[index].structure
            return model.loss(out, self._one).detach()

    def backward(self, index: int, scale: float) -> ByUse:
        """The gradients of the weights of one stage; those of its inputs wait for other stages."""
        model, is_again = self._model, self._is_recomputed(index)
        leaves = self._weights.backward if is_again else self._weights.forward
        given = self._given[index] = [apart(value) for value in self._given[index]]
        swapping = nullcontext() if is_again else _swapping(model, *self._weights)
        with swapping, model.running(self._one):
            out = self._called(index, leaves, self._buffers[index])
            if not model.graph.successors[index]:
                out = model.loss(out, self._one) * scale
        outputs = model.returned(index, out).leaves
        pairs = zip(outputs, self._arrived(index, outputs), strict=True)
        wanted = [(out, g) for out, g in pairs if out.requires_grad and g is not None]
        mine = {use: leaf for use, leaf in leaves.items() if use.stage == index}
        with without_autocast(model.device):
            found = collected(mine, wanted) if wanted else {}
        for other, value in zip(model.graph.predecessors[index], given, strict=False):
            passed = [None if leaf.grad is None else contiguous(leaf.grad) for leaf in value.leaves]
            edge = other, index
            passed = model.crossings.of(edge, self._one.number).gradients(passed)
            self._gradients[edge] = spread(passed, self._returned[other], model.carries.get(edge))
        return found

    def _called(self, index: int, leaves: ByUse, buffers: dict[str, Tensor] | None = None) -> Any:
        given = [value.cloned() for value in self._given[index]]
        return self._model.called(index, given, leaves, buffers)

    def _arrived(self, index: int, outputs: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """The gradient of each tensor that a stage returned, over its readers; 1 for the loss."""
        readers = self._model.graph.successors[index]
        if not readers:
            return [torch.ones_like(loss) for loss in outputs]
        each = [self._gradients[index, reader] for reader in readers]
        return [added(parts) for parts in zip(*each, strict=True)]


def apart(value: Value) -> Value:
    """A value without its history, which collects gradients where it had one."""
    return value.with_leaves(
        contiguous(leaf).requires_grad_(leaf.requires_grad) for leaf in value.leaves
    )


def collected(leaves: ByUse, roots: Sequence[tuple[Tensor, Tensor | None]]) -> ByUse:
    """What a backward from these gradients gives each leaf, as hooks of its weight leave it."""
    with _alone(leaves.values()):
        torch.autograd.backward([root for root, _ in roots], [gradient for _, gradient in roots])
        return {
            use: leaf.grad if leaf is use.weight else hooked(use.weight, leaf.grad)
            for use, leaf in leaves.items()
            if leaf.grad is not None
        }


@contextmanager
def _alone(leaves: Iterable[Tensor]) -> Iterator[None]:
    """Let a backward start from no gradients, and wake no hook that waits for a sum."""
    kept = [(leaf, leaf.grad) for leaf in leaves]
    hooks = [dict(_hooks(leaf)) for leaf, _ in kept]
    for leaf, _ in kept:
        leaf.grad = None
        _hooks(leaf).clear()
    try:
        yield
    finally:
        for (leaf, gradient), calls in zip(kept, hooks, strict=True):
            leaf.grad = gradient
            _hooks(leaf).update(calls)


def _hooks(leaf: Tensor) -> dict[int, Any]:
    """Those that see a gradient once it is added."""
    found: dict[int, Any] | None = leaf._post_accumulate_grad_hooks
    return {} if found is None else found


def _swapping(model: WholeModel, leaves: ByUse, others: ByUse) -> AbstractContextManager[object]:
    """Let the backward of what runs here find other weights than its forward used."""
    if leaves is others:
        return nullcontext()
    later = {leaf.untyped_storage().data_ptr(): others[use] for use, leaf in leaves.items()}

    def pack(saved: Tensor) -> Tensor:
        leaf = cast_from(saved)  # under autocast
        weight = later.get((saved if leaf is None else leaf).untyped_storage().data_ptr())
        if weight is None:
            return saved
        found = weight.detach().to(saved.dtype)
        return found.as_strided(saved.size(), saved.stride(), saved.storage_offset())

    return model.saved_inputs.otherwise(pack)
