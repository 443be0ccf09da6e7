"""Batches: cut alike, or given as microbatches of any shapes, which every transport carries."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.exactness import differences
from tests.runtime.models import WIDTH, layers
from tests.runtime.ranks import over_transports
from weft.errors import InputError
from weft.ir.program import Program
from weft.runtime import split
from weft.runtime.batch import cut
from weft.runtime.stage.values import Value
from weft.schedules import chimera, one_f_one_b, zbv

Ragged = list[tuple[list[Tensor], list[Tensor]]]


# cutting


def sizes(cuts: list[Value]) -> list[list[int]]:
    return [[len(tensor) for tensor in microbatch.leaves] for microbatch in cuts]


def test_a_tensor_is_cut_with_a_short_last_microbatch() -> None:
    assert sizes(cut(torch.zeros(8, 3), 4, "batch")) == [[2]] * 4
    assert sizes(cut(torch.zeros(10), 4, "batch")) == [[3], [3], [3], [1]]


def test_tensors_of_a_tuple_are_cut_alike() -> None:
    assert sizes(cut((torch.zeros(4, 3), torch.zeros(4)), 2, "batch")) == [[2, 2]] * 2


def test_a_list_holds_microbatches() -> None:
    given = [torch.zeros(3), (torch.zeros(5), torch.zeros(2))]
    assert sizes(cut(given, 2, "batch")) == [[3], [5, 2]]


def test_what_cannot_be_cut_is_refused_with_what_could() -> None:
    with pytest.raises(InputError, match=r"a batch of 5 .* 4 microbatches of 2 .*; use 4"):
        cut(torch.zeros(5), 4, "batch")
    with pytest.raises(
        InputError, match=r"the tensors of a batch have different lengths: \[0\] 3, \[1\] 4"
    ):
        cut((torch.zeros(3), torch.zeros(4)), 1, "batch")
    with pytest.raises(InputError, match="a target of 3 microbatches where 2 are run"):
        cut([torch.zeros(1)] * 3, 2, "target")


# different shapes


def sequences(lengths: list[int]) -> tuple[list[Tensor], list[Tensor]]:
    """A batch and a target of two sequences for each microbatch, all of its own length."""
    generator = torch.Generator().manual_seed(sum(lengths))

    def draw() -> list[Tensor]:
        return [torch.randn(2, length, WIDTH, generator=generator) for length in lengths]

    return draw(), draw()


def squared_sum(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target) ** 2).sum()


def ragged_differences(transport: str = "auto") -> dict[str, list[str]]:
    """What differs from the reference when lengths differ within a step and between steps.

    One microbatch is empty: it adds nothing.
    """
    shape = {"devices": 2, "microbatches": 4}
    data = [sequences(lengths) for lengths in ([3, 9, 1, 4], [9, 0, 2, 17], [3, 9, 1, 4])]
    return {
        program.name: found
        for program in (one_f_one_b(**shape), chimera(**shape), zbv(**shape))
        if (found := _ragged(program, data, transport))
    }


def _ragged(program: Program, data: Ragged, transport: str) -> list[str]:
    stages = split(layers(program.stages), stages=program.stages)
    return differences(stages, program, data, transport=transport, loss=squared_sum, clip=0.5)


def test_microbatches_of_different_shapes_are_exact() -> None:
    assert ragged_differences() == {}


def test_microbatches_of_different_shapes_on_ranks() -> None:
    assert over_transports(2, ragged_differences) == [[{}] * 2] * 2


class Masked(nn.Module):
    """Reads a value and its mask, and passes both on."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.line(value) * mask, mask


def test_microbatches_of_several_tensors() -> None:
    (values, targets) = sequences([3, 5])
    batch = [(value, torch.ones(2, len(value[0]), 1)) for value in values]
    target = [(wanted, torch.tensor(0.5)) for wanted in targets]

    def loss(output: tuple[Tensor, Tensor], wanted: Tensor, weight: Tensor) -> Tensor:
        return squared_sum(output[0], wanted) * weight

    program = one_f_one_b(devices=2, microbatches=2)
    assert differences([Masked(), Masked()], program, [(batch, target)], loss=loss) == []


def test_microbatches_lie_in_memory_as_new_tensors_do() -> None:
    """Products of matrices depend on it in the last bits, and other ranks have new tensors."""
    rows = torch.randn(7, 5)
    pieces = [piece.leaves[0] for piece in cut(rows, 3, "batch")]
    assert all(piece.data_ptr() % 64 == 0 for piece in pieces)
    assert torch.equal(torch.cat(pieces), rows)
