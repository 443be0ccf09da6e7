"""Borders: values as they enter a stage and leave it, and gradients as they go back.

From stage to stage both are contiguous, as they travel. Between segments of one stage they are laid
out as they would be without segments: kernels may add up in another order elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from weft.errors import InputError
from weft.runtime.device.accelerator import onto
from weft.runtime.device.shards import is_sharded, local
from weft.runtime.losses import refuse_constant
from weft.runtime.precision import cast
from weft.runtime.stage.graphs import Root
from weft.runtime.stage.role import Role
from weft.runtime.stage.saved import Saved
from weft.runtime.stage.values import TENSOR, Value, contiguous, learns

Gradients: TypeAlias = Sequence[Tensor | None]
Passed: TypeAlias = tuple[Tensor | None, ...]


class Borders:
    """Where values enter one copy of a stage and leave it."""

    def __init__(self, module: nn.Module, role: Role, device: torch.device) -> None:
        self._module, self._weights, self._device = module, [*module.parameters()], device
        self._role, self._is_learning = role, not role.is_first
        self._sent = role.handed if role.loss is None else None

    # in

    def taken(self, value: Value) -> Value:
        """A value without history that collects the gradients that somebody wants."""
        leaves, structure = value
        if structure is TENSOR:
            return Value((self._leaf(leaves[0], False),), structure)
        return value.with_leaves(map(self._leaf, leaves, structure.fixed))

    def _leaf(self, value: Tensor, is_fixed: bool) -> Tensor:
        leaf = self.here(value).detach()
        if self._is_learning and not is_fixed and learns(leaf):
            leaf.requires_grad_()
        return leaf

    def here(self, value: Tensor) -> Tensor:
        """An input on the device of this stage's weights, of the type that it computes with."""
        return cast(self._near(value), self._role.taken)

    def _near(self, value: Tensor) -> Tensor:
        return value if value.device == self._device else onto(value, self._device)

    # out

    def handed(self, value: Value, disturbed_by: int | None) -> Value:
        """A value as others get it; some reader may disturb hooks of it."""
        leaves = tuple([self._handed(leaf, disturbed_by) for leaf in value.leaves])
        return Value(leaves, value.structure)

    def _handed(self, value: Tensor, disturbed_by: int | None) -> Tensor:
        """What changes later, such as a buffer, is copied."""
        if is_sharded(value):
            raise InputError(
                f"stage {self._role.index} returns a DTensor, of which only the shard could pass to"
                f" another stage; return a plain tensor: use_local_output=True in its plan, or"
                f" .full_tensor()"
            )
        if value._backward_hooks and disturbed_by is not None:
            raise InputError(
                f"stage {self._role.index} returns a value that it has hooked, and stage"
                f" {disturbed_by} changes it in place or differentiates by it, or may do so,"
                f" where torch calls hooks in another way; return a copy of it (.clone())"
            )
        plain = value.detach() if self._role.is_before else contiguous(value)
        found = cast(plain, self._sent)
        if found is not plain:
            return found
        is_new = value.grad_fn is not None and value._base is None
        return found if is_new or not self._is_own(found) else found.clone()

    def judged(self, output: Any) -> Any:
        """What the last stage returns, as the loss gets it."""
        dtype = self._role.handed
        if dtype is None:
            return output
        value = Value.of(output, f"what stage {self._role.index} returns")
        return value.with_leaves(cast(leaf, dtype) for leaf in value.leaves).tree

    def _is_own(self, value: Tensor) -> bool:
        place = value.untyped_storage().data_ptr()
        own: Iterable[Tensor] = (*self._weights, *self._module.buffers())
        return any(local(tensor).untyped_storage().data_ptr() == place for tensor in own)

    # back

    def roots(
        self, outputs: Sequence[Root], gradients: Gradients
    ) -> tuple[list[Root], list[Tensor]]:
        """Outputs that have a gradient to pass on, and those gradients."""
        if self._role.loss is not None:
            (loss,) = outputs
            assert isinstance(loss, Tensor)
            refuse_constant(loss)
            return [loss], [torch.ones_like(loss)]
        roots: list[Root] = []
        grads: list[Tensor] = []
        for value, grad in zip(outputs, gradients, strict=True):
            if grad is not None and (type(value) is GradientEdge or value.requires_grad):  # type: ignore[union-attr]
                roots.append(value)
                grads.append(self._near(grad))  # torch casts it to the type of the value
        return roots, grads


def edge_of(output: Tensor) -> Root:
    """Where a backward begins, without the memory of the output."""
    return get_gradient_edge(output) if output.requires_grad else output.new_empty(0)


def passed(saved: Saved) -> Passed:
    """The gradients of the inputs, as they travel; or as they are, within a stage."""
    if saved.arrived is not None:
        return tuple([saved.arrived.get(index) for index in range(len(saved.inputs))])
    return tuple([None if leaf.grad is None else contiguous(leaf.grad) for leaf in saved.inputs])


def refuse_changed(given: Sequence[Value], stage: int) -> None:
    """Refuse a change of inputs in place that their other readers might see, or not."""
    if any(leaf._version for value in given for leaf in value.leaves):
        raise InputError(
            f"stage {stage} changes its input in place, which another stage reads too;"
            f" let it change a copy (.clone())"
        )


def refuse_overlap(value: Value, stage: int, reader: int) -> None:
    """Refuse tensors that share memory, where a reader changes some in place: it gets copies."""
    for one, other in combinations(map(local, value.leaves), 2):
        if _do_overlap(one, other):
            raise InputError(
                f"stage {stage} returns tensors that share memory, and stage {reader} changes one"
                f" of what it is given in place, which it would not see in the other; return copies"
                f" (.clone()), or let stage {reader} change a copy"
            )


def _do_overlap(one: Tensor, other: Tensor) -> bool:
    """Whether a change of one is one of the other; halves of a tensor have nothing in common."""
    if one.layout is not torch.strided or other.layout is not torch.strided:
        return False
    storage = one.untyped_storage()
    if not storage.nbytes() or storage.data_ptr() != other.untyped_storage().data_ptr():
        return False
    if one.dtype != other.dtype:
        return True
    seen = torch.zeros(storage.nbytes() // one.itemsize, dtype=torch.bool, device=one.device)
    seen.as_strided(one.shape, one.stride(), int(one.storage_offset())).fill_(True)
    return bool(seen.as_strided(other.shape, other.stride(), int(other.storage_offset())).any())
