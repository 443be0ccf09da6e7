"""Tensor parallelism of the small GPT, by torch's own: ranks that share every layer.

    perceptron   the first matrix by columns, the second by rows, and a sum of what they give
    attention    each rank has some of the heads: queries, keys and contents by columns, then rows
    the rest     embedding, norms and head are whole on every rank, and see the same values

Knows no pipeline: between layers every rank has all values, so that they are cut anywhere.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional

from weft.errors import InputError
from weft.models.gpt import Attention, Block


class HeadsApart(nn.Module):
    """The same attention with a matrix for each of queries, keys and contents: some of the heads.

    A rank's part of a matrix that has all three would be queries alone.
    """

    def __init__(self, whole: Attention, parts: int) -> None:
        super().__init__()
        if whole.heads % parts:
            raise InputError(
                f"{whole.heads} heads cannot be shared by {parts} ranks; plan with --max-tensor"
            )
        self._heads = whole.heads // parts
        self.query, self.key, self.content = _thirds(whole.project)
        self.merge = whole.merge

    def forward(self, value: Tensor) -> Tensor:
        query, key, content = (
            matrix(value).unflatten(-1, (self._heads, -1)).transpose(1, 2)
            for matrix in (self.query, self.key, self.content)
        )
        mixed = functional.scaled_dot_product_attention(query, key, content, is_causal=True)
        merged: Tensor = self.merge(mixed.transpose(1, 2).flatten(2))
        return merged


def _thirds(project: nn.Linear) -> list[nn.Linear]:
    """A linear layer for each third of what one gives."""
    size, found = project.out_features // 3, []
    weights, biases = project.weight.chunk(3), project.bias.chunk(3)
    for weight, bias in zip(weights, biases, strict=True):
        made = nn.Linear(project.in_features, size, device="meta")
        made.weight, made.bias = (nn.Parameter(one.detach().clone()) for one in (weight, bias))
        found.append(made)
    return found


def share_layers(model: nn.Sequential, mesh: DeviceMesh) -> nn.Sequential:
    """The same GPT, each of whose layers is shared by the ranks of a mesh of one dimension."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        ParallelStyle,
        RowwiseParallel,
        parallelize_module,
    )

    styles: dict[str, ParallelStyle] = {
        **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "content")},
        "attention.merge": RowwiseParallel(),
        "perceptron.1": ColwiseParallel(),
        "perceptron.3": RowwiseParallel(),
    }
    for block in model:
        if isinstance(block, Block):
            block.attention = cast(Attention, HeadsApart(block.attention, mesh.size()))
            parallelize_module(block, mesh, styles)
    return model
