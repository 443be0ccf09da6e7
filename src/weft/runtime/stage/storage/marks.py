"""Marks: what a user says of modules whose saved tensors need not be kept as they are.

    stored_in_fp8   what is saved of its inputs may be rounded: E4M3, each 128 elements of a row
                    with a power of two of their own
    recomputed      its inputs alone are saved, and it runs again in the backward

Knows what is rounded; whoever stores it does so in its own way.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Flag, auto
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.runtime.stage.modules import is_compiled

MARK = "weft_storage"  # attribute of a marked module
TILE = 128  # elements of a row that share a scale
SCALE_BYTES = 4
LEAST_UNIT = 2.0**-119  # below which a scale would not be an ordinary number of float32
TOP = 2.0**7  # takes quotients below 2 to the top of E4M3's range
STORED = (torch.float32, torch.bfloat16, torch.float16)  # types of what is stored in FP8

Module = TypeVar("Module", bound=nn.Module)


class Mark(Flag):
    """How what a module saves is stored."""

    FP8 = auto()
    AGAIN = auto()


class MarkedModule(NamedTuple):
    """A module of a stage that has a mark."""

    name: str
    module: nn.Module
    mark: Mark


def stored_in_fp8(module: Module) -> Module:
    """The same module, of whose inputs what autograd saves is stored in FP8.

    Gradients that it computes from its inputs are rounded by that; what it returns is not. For
    modules that are known to bear it, such as the projections of a feed-forward layer.
    """
    return _marked(module, Mark.FP8)


def recomputed(module: Module) -> Module:
    """The same module, which saves its inputs alone and runs again in the backward: the same bits.

    For what is large to keep and cheap to compute: norms, activation functions.
    """
    return _marked(module, Mark.AGAIN)


def mark_of(module: nn.Module) -> Mark:
    """How what a module saves is stored; nothing where it is kept as it is."""
    return getattr(module, MARK, Mark(0))


def marked(stage: nn.Module) -> list[MarkedModule]:
    """The modules of a stage that have marks; what is inside of a recomputed one runs with it."""
    return [*_found(stage, "", None, set())]


def is_rounded(tensor: Tensor) -> bool:
    """Whether a saved input is stored in FP8: where that takes fewer bytes, with the scales."""
    is_plain = type(tensor) in (Tensor, nn.Parameter)
    if not is_plain or tensor.dtype not in STORED or not tensor.numel() or not tensor.dim():
        return False
    row = tensor.shape[-1]
    stored = row + -(-row // TILE) * SCALE_BYTES
    return stored < row * tensor.dtype.itemsize


def _marked(module: Module, mark: Mark) -> Module:
    setattr(module, MARK, mark_of(module) | mark)
    return module


def _found(
    module: nn.Module, name: str, inside: str | None, seen: set[int]
) -> Iterator[MarkedModule]:
    """Marked modules within, each once; `inside` is the recomputed one that they are part of."""
    if id(module) in seen:
        return
    seen.add(id(module))
    mark = mark_of(module)
    if Mark.FP8 in mark and inside is not None:
        raise InputError(
            f"{name} is stored_in_fp8 inside of {inside or 'a stage'}, which is recomputed, so that"
            f" nothing in it is stored: mark one of the two"
        )
    if mark and inside is None:
        yield MarkedModule(name, module, mark)
    within = name if Mark.AGAIN in mark and inside is None else inside
    for child_name, child in module.named_children():
        path = f"{name}.{child_name}" if name else child_name
        if is_compiled(module) and any(map(mark_of, child.modules())):
            raise InputError(
                f"{path} is compiled, and what is marked in it as stored_in_fp8 or recomputed is"
                f" not called as a module there: mark what is not compiled, or leave the marks out"
            )
        yield from _found(child, path, within, seen)
