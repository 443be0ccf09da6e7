"""Shards: what a process has of tensors that several ranks hold together, torch's DTensors.

    weight 16 x 8 over ("tp",), Shard(0)    rank 0 has rows 0..7, rank 1 rows 8..15
    bias 8 over ("tp",), Replicate()        every rank has all of it

A plain tensor is its own shard. Whatever is done with shards alone needs no other rank; `placed`
may, so that all ranks of a mesh have to come to it in the same order: on the main thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor

PLAIN = (Tensor, torch.nn.Parameter)


def is_sharded(tensor: Tensor) -> TypeGuard[Any]:
    """Whether a tensor is a DTensor, though it be replicated; importing that takes seconds."""
    return type(tensor) not in PLAIN and hasattr(tensor, "to_local")


def is_gathered(module: torch.nn.Module) -> bool:
    """Whether FSDP2 gathers weights of a module for its passes: others than it has between them."""
    return any(hasattr(one, "set_requires_gradient_sync") for one in module.modules())


def reshard(module: Any) -> None:
    """Let a module that FSDP2 has gathered keep its shards alone."""
    module.reshard()


def local(tensor: Tensor) -> Tensor:
    """The shard of a tensor that is here, in the same memory and without its history."""
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():
        found: Tensor = tensor.detach().to_local()
    return found.wait() if hasattr(found, "wait") else found


def like(weight: Tensor, shard: Tensor) -> Tensor:
    """A tensor that is distributed as a weight is, with this shard."""
    if not is_sharded(weight):
        return shard
    made: Tensor = type(weight).from_local(
        shard,
        weight.device_mesh,
        weight.placements,
        run_check=False,
        shape=weight.shape,
        stride=weight.stride(),
    )
    return made


def placed(grad: Tensor, weight: Tensor) -> Tensor:
    """A gradient, distributed as its weight is: what ranks have in parts is summed."""
    if not is_sharded(grad) or grad.placements == weight.placements:  # type: ignore[attr-defined]
        return grad
    with torch.no_grad():
        found: Tensor = grad.redistribute(placements=weight.placements)  # type: ignore[attr-defined]
    return found


def distribution(weight: Tensor) -> str:
    """How a weight is distributed, in short; nothing for a plain one."""
    if not is_sharded(weight):
        return ""
    return f"{weight.device_mesh.mesh_dim_names} {weight.placements}"


def groups_of(weight: Tensor) -> tuple[dist.ProcessGroup, ...]:
    """The ranks that hold a weight together, dimension by dimension of its mesh."""
    return tuple(weight.device_mesh.get_all_groups()) if is_sharded(weight) else ()


def all_groups(weights: Iterable[Tensor]) -> tuple[dist.ProcessGroup, ...]:
    """All ranks that hold any of these weights together."""
    return tuple(dict.fromkeys(group for weight in weights for group in groups_of(weight)))


def groups_over(weight: Tensor) -> tuple[dist.ProcessGroup, ...]:
    """Those among which it is cut; along other dimensions each rank has the same of it."""
    if not is_sharded(weight):
        return ()
    pairs = zip(groups_of(weight), weight.placements, strict=True)
    return tuple(group for group, placement in pairs if not placement.is_replicate())
