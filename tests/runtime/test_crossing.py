"""Memory that one stream of a GPU has and another uses is kept until that one is done with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest
import torch
from torch import Tensor, nn, optim

from tests.runtime.models import WIDTH, batches, linear, squared
from weft.ir.kinds import Direction
from weft.lower import experts, split
from weft.runtime import Pipeline
from weft.runtime.stage import stage
from weft.runtime.transport import loopback
from weft.runtime.transport.loopback import Loopback
from weft.runtime.transport.message import Fixed, Message, Route
from weft.runtime.weights import exchange, groups
from weft.schedules import chimera, gpipe


class Noted:
    """What was kept for whoever called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: object) -> None:
        self.kept: list[Tensor] = []
        for module in modules:
            monkeypatch.setattr(module, "used_here", self.note)

    def note(self, tensors: Iterable[object]) -> None:
        self.kept += [tensor for tensor in tensors if isinstance(tensor, Tensor)]


def adam(named: Iterable[tuple[str, nn.Parameter]]) -> optim.Optimizer:
    return optim.AdamW([weight for _, weight in named])


def trained(program: object, stages: Sequence[nn.Module] | None = None) -> None:
    ((batch, target),) = batches(4, 1)
    stages = linear(2) if stages is None else stages
    with Pipeline(stages, program, loss=squared, optimizer=adam) as pipeline:  # type: ignore[arg-type]
        pipeline.step(batch, target)


def test_gradients_are_kept_for_the_stream_that_sums_them(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Noted(monkeypatch, exchange)
    trained(chimera(devices=2, microbatches=4))
    assert noted.kept
    assert all(tensor.shape in ((WIDTH, WIDTH), (WIDTH,)) for tensor in noted.kept)


def test_sums_are_kept_for_the_stream_that_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Noted(monkeypatch, groups)
    trained(chimera(devices=2, microbatches=4))
    assert noted.kept


def test_without_sums_nothing_crosses(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Noted(monkeypatch, exchange, groups)
    trained(gpipe(devices=2, microbatches=4))
    assert noted.kept == []


def segmented(norm: Callable[[], nn.Module]) -> list[nn.Module]:
    """Stages whose dispatch is such a norm; combine is a linear layer."""
    return [nn.Sequential(nn.ReLU(), norm(), nn.ReLU(), nn.Linear(WIDTH, WIDTH)) for _ in range(2)]


def test_gradients_of_parts_beside_are_kept_for_the_stream_that_updates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted = Noted(monkeypatch, groups)
    trained(experts(gpipe(devices=2, microbatches=4)), segmented(nn.Identity))
    assert [tensor.shape for tensor in noted.kept] == [(WIDTH, WIDTH), (WIDTH,)] * 2


def test_what_parts_beside_leave_for_their_weights_is_kept_for_the_computation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gradients of a norm are there after I, of a linear layer only what they are made of."""
    noted = Noted(monkeypatch, stage)
    program = experts(split(gpipe(devices=2, microbatches=4)))
    trained(program, segmented(lambda: nn.LayerNorm(WIDTH)))
    dispatch, combine = [(WIDTH,)] * 2, [(1, WIDTH)] * 2
    assert [tensor.shape for tensor in noted.kept] == [*dispatch, *combine] * 8


def test_what_passes_from_segment_to_segment_is_kept_for_its_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted = Noted(monkeypatch, loopback)
    route = Route(Message(0, Direction.ACTIVATION, 0), 0, 0, "0F0", 0)
    value = torch.zeros(2)
    for is_crossing in (False, True):
        local = Loopback(is_crossing=is_crossing)
        local.sender(route, Fixed(()))([value])
        local.receiver(route, Fixed(()))()
    assert [id(one) for one in noted.kept] == [id(value)]
