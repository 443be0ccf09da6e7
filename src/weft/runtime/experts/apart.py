"""Weights that are held apart: each rank of an expert group has rows of its own.

    up 8 x 16 x 64, 8 experts    rank 0 of 2 has up[0:4], rank 1 has up[4:8]

Their gradients are not summed over the ranks of the group, as those of other weights are. Where one
process emulates a group, it has all rows, and measures them as the ranks would.
"""

from __future__ import annotations

from torch import Tensor, nn

from weft.runtime.experts.group import ExpertGroup

_MARK, _PARTS = "_weft_apart", "_weft_parts"  # attributes of a weight, and of what has it


def hold_apart(module: nn.Module, group: ExpertGroup) -> None:
    """Mark all weights of a module as this rank's rows (along dimension 0) of what a group has."""
    is_whole = getattr(group, "is_emulated", False)
    setattr(module, _MARK, (0, 1) if is_whole else (group.rank, group.size))
    setattr(module, _PARTS, group.size)
    mark_again(module)


def mark_again(stage: nn.Module) -> None:
    """Mark weights as their modules are: copies of weights lose what copies of modules keep."""
    for module in stage.modules():
        if hasattr(module, _MARK):
            for weight in module.parameters():
                setattr(weight, _MARK, getattr(module, _MARK))
                setattr(weight, _PARTS, getattr(module, _PARTS))


def is_apart(weight: Tensor) -> bool:
    """Whether ranks of an expert group have other rows of a weight."""
    return apart_of(weight)[1] > 1


def keep_apart(old: Tensor, new: Tensor) -> None:
    """Mark a weight as the one that it stands in for."""
    setattr(new, _MARK, apart_of(old))
    setattr(new, _PARTS, parts_of(old))


def apart_of(weight: Tensor) -> tuple[int, int]:
    """Which part of it is here, of how many; the only one where nothing says otherwise."""
    found: tuple[int, int] = getattr(weight, _MARK, (0, 1))
    return found


def parts_of(weight: Tensor) -> int:
    """In how many parts of its rows it is measured, wherever they are."""
    found: int = getattr(weight, _PARTS, 1)
    return found
