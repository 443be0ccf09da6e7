"""Outputs: what last stages return for a batch, from all ranks that have some, as one."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from weft.errors import InputError
from weft.runtime.batch import Cut
from weft.runtime.stage.values import Structure, Value, contiguous
from weft.runtime.transport.message import TensorShape, layout_of, read, written

HEAD = struct.Struct("<II")  # microbatch, bytes of its layout


class Outputs:
    """What the last stages of this process return, by microbatch."""

    def __init__(self) -> None:
        self._found: dict[int, Value] = {}

    def see(self, microbatch: int, output: Any) -> None:
        value = Value.of(output, "what the last stage returns")
        self._found[microbatch] = value.with_leaves(leaf.detach() for leaf in value.leaves)

    def written(self) -> bytes:
        return b"".join(_written(number, value) for number, value in self._found.items())

    def add(self, shares: Iterable[bytes]) -> None:
        """Take what all ranks have written."""
        for share in shares:
            self._found |= dict(_read(share))

    def joined(self, inputs: Cut) -> Any:
        """One output for the batch, as it was cut; a list of them, where the user has cut it."""
        found = [self._found[inputs.first + number] for number in range(inputs.given)]
        if inputs.is_list:
            return [value.cloned().tree for value in found]
        structures = {value.structure.unmarked for value in found}
        if len(structures) > 1:
            raise InputError(
                "the last stage returns values of different structures for the microbatches of a"
                " batch; give the batch as a list of microbatches, to get a list of outputs"
            )
        columns = zip(*(value.leaves for value in found), strict=True)
        return found[0].with_leaves(map(_joined, columns)).tree


def _joined(leaves: Sequence[Tensor]) -> Tensor:
    """Along the first dimension; what has none becomes a number for each microbatch."""
    if not leaves[0].dim():
        return torch.stack([*leaves])
    try:
        return torch.cat([*leaves])
    except RuntimeError as error:
        raise InputError(
            f"what the last stage returns for the microbatches of a batch cannot be joined along"
            f" its first dimension: {error}; give the batch as a list of microbatches, to get a"
            f" list of outputs"
        ) from error


# as bytes, for other ranks


def _written(number: int, value: Value) -> bytes:
    layout = written(layout_of(value.packed()))
    leaves = [contiguous(leaf.cpu()).flatten().view(torch.uint8) for leaf in value.leaves]
    content = [leaf.numpy().tobytes() for leaf in leaves]
    return HEAD.pack(number, len(layout)) + layout + b"".join(content)


def _read(share: bytes) -> Iterator[tuple[int, Value]]:
    place = 0
    while place < len(share):
        number, length = HEAD.unpack_from(share, place)
        place += HEAD.size + length
        packed: list[Tensor | Structure | None] = []
        for entry in read(share[place - length : place]):
            if not isinstance(entry, TensorShape):
                packed.append(entry)
                continue
            made = torch.empty(entry.shape, dtype=entry.dtype, device="cpu")
            size = made.numel() * made.itemsize
            if size:
                plain = torch.frombuffer(bytearray(share[place : place + size]), dtype=entry.dtype)
                made = plain.view(entry.shape)
            packed.append(made)
            place += size
        yield number, Value.unpacked(packed)
