"""Memory of a host that its ranks share: files without a name."""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection

import torch
from torch import Tensor

from weft.runtime.ranks.mesh import Mesh
from weft.runtime.transport.blocks import Announced, Block, BlocksGiven, IsUnread
from weft.runtime.transport.message import Values

GIVEN = b"."  # the file itself takes another way


class HostMemory:
    """Blocks that several processes have mapped."""

    is_read_late = False

    def make(self, number: int, size: int) -> Block:
        file = os.memfd_create("weft")
        os.ftruncate(file, size)
        return Block(number, _mapped(file, size), file)

    def give(self, mesh: Mesh, destination: int, block: Block) -> bytes:
        mesh.give(destination, block.held)
        os.close(block.held)
        return GIVEN

    def open(self, mesh: Mesh, source: int, announced: Announced) -> Block:
        file = mesh.given(source)
        try:
            return Block(announced.number, _mapped(file, announced.size))
        finally:
            os.close(file)

    def fill(self, block: Block, views: Values, values: Values) -> None:
        for view, value in zip(views, values, strict=True):
            if isinstance(view, Tensor):
                view.copy_(value)

    def empty(self, block: Block, views: Values) -> Values:
        return [view.clone() if isinstance(view, Tensor) else view for view in views]

    def part(
        self, mesh: Mesh, sources: Collection[int], given: BlocksGiven, is_unread: IsUnread
    ) -> None:
        """Memory stays as long as anybody has it mapped."""


def _mapped(file: int, size: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(file, size), dtype=torch.uint8)
