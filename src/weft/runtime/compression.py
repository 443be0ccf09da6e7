"""Compression: what values and gradients are rounded to where they cross devices, edge by edge.

             activations   gradients   of each tensor
    bf16     bfloat16      bfloat16    cast
    fp16     float16       float16     scaled by a power of two
    fp8      e4m3          e5m2        scaled by a power of two

Knows edges and types; knows neither tensors nor transports.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch

from weft.errors import InputError
from weft.ir.graph import Graph
from weft.ir.kinds import Direction

Format: TypeAlias = Literal["bf16", "fp16", "fp8"]
FORMATS: tuple[str, ...] = get_args(Format)

DTYPES: dict[tuple[str, Direction], torch.dtype] = {
    ("bf16", Direction.ACTIVATION): torch.bfloat16,
    ("bf16", Direction.GRADIENT): torch.bfloat16,
    ("fp16", Direction.ACTIVATION): torch.float16,
    ("fp16", Direction.GRADIENT): torch.float16,
    ("fp8", Direction.ACTIVATION): torch.float8_e4m3fn,
    ("fp8", Direction.GRADIENT): torch.float8_e5m2,
}
SCALE_BYTES = 8  # that travel with a tensor; one that does not become smaller stays as it is


@dataclass(frozen=True, slots=True)
class Compression:
    """The types in which values and gradients cross devices; None leaves them as they are."""

    activations: Format | None = None
    gradients: Format | None = None

    def __post_init__(self) -> None:
        for asked in (self.activations, self.gradients):
            if asked is not None and asked not in FORMATS:
                raise InputError(
                    f"compress is one of {', '.join(FORMATS)}, a Compression of these, or a dict of"
                    f" either by edge, not {asked!r}"
                )

    def dtype(self, direction: Direction) -> torch.dtype | None:
        """The type that a message of a direction travels in."""
        is_forward = direction is Direction.ACTIVATION
        asked = self.activations if is_forward else self.gradients
        return None if asked is None else DTYPES[asked, direction]


OfEdge: TypeAlias = Format | Compression | None
AskedCompression: TypeAlias = OfEdge | Mapping[tuple[int, int], OfEdge]
ByEdge: TypeAlias = Mapping[tuple[int, int], Compression]  # (source stage, reader stage)


def compression_of(asked: AskedCompression, graph: Graph) -> ByEdge:
    """What a user asks for, along each edge that is compressed."""
    if not isinstance(asked, Mapping):
        asked = dict.fromkeys(graph.edges, asked)
    for edge in asked:
        if edge not in graph.edges:
            raise InputError(
                f"compress names an edge {edge!r}, which the model does not have: an edge is a pair"
                f" (source stage, reader stage); there are {_listed(graph)}"
            )
    given = sorted(asked.items())
    return {edge: _of_edge(one) for edge, one in given if one is not None}


def is_smaller(shape: tuple[int, ...], dtype: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether a tensor takes fewer bytes in the wanted type, with a scale."""
    count = math.prod(shape)
    is_less = count * wanted.itemsize + SCALE_BYTES < count * dtype.itemsize
    return dtype.is_floating_point and is_less


def bytes_in(shape: tuple[int, ...], dtype: torch.dtype, wanted: torch.dtype) -> int:
    """Bytes of a tensor that travels in the wanted type, if that makes it smaller."""
    if not is_smaller(shape, dtype, wanted):
        return math.prod(shape) * dtype.itemsize
    scale = 0 if wanted is torch.bfloat16 else SCALE_BYTES
    return math.prod(shape) * wanted.itemsize + scale


def _of_edge(asked: Format | Compression) -> Compression:
    return asked if isinstance(asked, Compression) else Compression(asked, asked)


def _listed(graph: Graph, most: int = 6) -> str:
    found = [str(edge) for edge in graph.edges[:most]]
    return ", ".join(found) + (", ..." if len(graph.edges) > most else "")
