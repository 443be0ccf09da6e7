"""Stages cut into their layers for offload: as exact as whole ones, layer by layer."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.runtime.asynchrony import momentum
from tests.runtime.models import WIDTH, KnownSegments, batches, squared
from tests.runtime.ranks import run
from tests.runtime.test_offloading import Trained, program_of, slowly
from weft.errors import InputError
from weft.ir.kinds import Kind, Layer
from weft.ir.program import Program
from weft.lower import experts, recompute, replicated
from weft.runtime import Pipeline, split
from weft.runtime.pieces import MOST_PIECES, cut_for_offload
from weft.runtime.ranks.carriers import Carrier
from weft.runtime.stage.offload import HeldTensors
from weft.runtime.stage.segments import segments_of
from weft.schedules import one_f_one_b, pipedream, zb_h1


class Residual(nn.Module):
    """Draws, and saves several tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.line = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        found: Tensor = value + torch.dropout(torch.relu(self.line(self.norm(value))), 0.1, True)
        return found


def sequence(count: int) -> nn.Sequential:
    """Layers that draw, change their input in place, keep a buffer, or learn nothing."""
    others = [
        nn.Flatten(),
        nn.ReLU(inplace=True),
        nn.BatchNorm1d(WIDTH),
        nn.Dropout(0.1),
        nn.Tanh(),
    ]
    return nn.Sequential(*(Residual() if at % 2 else others[at // 2] for at in range(count)))


def stages_of(program: Program, layers: int = 4) -> list[nn.Module]:
    torch.manual_seed(0)
    return [sequence(layers) for _ in range(program.stages)]


def pieces_in(program: Program) -> set[int]:
    """Numbers of segments that stages are cut into, of copies alone."""
    actions = program.actions
    moved = np.isin(actions.kind, (Kind.OFFLOAD, Kind.ONLOAD))
    return {*actions.segment[moved].tolist()}


@pytest.mark.parametrize("name", ["1f1b", "zbv", "interleaved-1f1b", "chimera", "dualpipev"])
def test_layers_that_leave_one_by_one_change_nothing(name: str) -> None:
    program = program_of(name)
    case = Trained(program, stages_of(program))
    assert case.differences("all") == []
    assert pieces_in(case.program) == {2, 6, 10, 14}
    everything = case.moved.away
    assert case.differences(0.5) == []
    assert 0 < case.moved.away <= everything


def test_more_layers_than_pieces_go_in_groups() -> None:
    program = zb_h1(devices=2, microbatches=4)
    case = Trained(program, stages_of(program, 9))
    assert case.differences("all") == []
    assert len(pieces_in(case.program)) == MOST_PIECES
    parts = segments_of(nn.Sequential(*(nn.Linear(1, 1) for _ in range(7))), [Layer.PLAIN] * 3)
    assert [[name for name, _ in part.named_children()] for part in parts] == [
        ["0", "1"],
        ["2", "3"],
        ["4", "5", "6"],
    ]


@pytest.mark.parametrize("settings", [{"precision": "bf16"}, {"clip": 0.5}], ids=str)
def test_slices_replicas_and_precisions_change_nothing_of_it(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    program = replicated(one_f_one_b(devices=2, microbatches=2), 2)
    model = nn.Sequential(*(Residual() for _ in range(6)))
    case = Trained(program, [*split(model, stages=2)], **settings)
    assert case.differences("all") == []
    assert pieces_in(case.program) == {2, 6, 10}


def tied_within() -> nn.Sequential:
    one, other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    other.weight = one.weight
    return nn.Sequential(one, other)


def hooked() -> nn.Sequential:
    module = sequence(4)
    module.register_forward_hook(lambda module, given, out: 2 * out)
    return module


def test_what_cannot_be_cut_leaves_whole() -> None:
    flat = one_f_one_b(devices=2, microbatches=4)
    stages = stages_of(flat)
    assert (cut_for_offload(flat, stages).actions.segment >= 0).any()
    for whole in (tied_within(), hooked(), nn.Linear(WIDTH, WIDTH)):
        assert cut_for_offload(flat, [whole, whole]) is flat
        case = Trained(flat, [stages[0], whole])
        assert case.differences("all") == []
        assert pieces_in(case.program) == {2, 6, 10, 14}  # of the first, and the last in one
    repeating = pipedream(devices=2, microbatches=4, updates=4)
    cut = experts(flat, layers=[[Layer.PLAIN] * 4] * 2)
    for program in (repeating, recompute(flat), cut):
        assert cut_for_offload(program, stages) is program


def test_a_layer_that_shows_its_segments_leaves_whole_beside_others_that_are_cut() -> None:
    flat = one_f_one_b(devices=2, microbatches=4)
    for alone in (KnownSegments([[0.0] * 4]), nn.Sequential(KnownSegments([[0.0] * 4]))):
        case = Trained(flat, [sequence(4), alone])
        assert case.differences("all") == []
        assert pieces_in(case.program) == {2, 6, 10, 14}


class Laid(nn.Module):
    """Returns what it computes in another layout: rows that are the same memory, or turned."""

    def __init__(self, *, is_turned: bool) -> None:
        super().__init__()
        self.line, self._is_turned = nn.Linear(WIDTH, WIDTH), is_turned

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.line(value)
        if self._is_turned:
            return out.reshape(len(out), -1, 2).transpose(1, 2)
        return out[:, :1].expand_as(out)


class Noting(nn.Linear):
    """Notes how what it reads is laid out."""

    seen: list[tuple[int, ...]] = []  # noqa: RUF012 (of all copies)

    def forward(self, value: Tensor) -> Tensor:
        self.seen.append(value.stride())
        return super().forward(value.reshape(len(value), WIDTH))


@pytest.mark.parametrize("is_turned", [True, False])
def test_between_layers_of_a_stage_values_are_laid_out_as_they_are(is_turned: bool) -> None:
    """Kernels may add up contiguous ones in another order."""
    torch.manual_seed(0)
    layers = nn.Linear(WIDTH, WIDTH), Laid(is_turned=is_turned), Noting(WIDTH, WIDTH)
    program = one_f_one_b(devices=2, microbatches=2)
    case = Trained(program, [nn.Sequential(*layers), nn.Linear(WIDTH, WIDTH)])
    Noting.seen.clear()
    assert case.differences("all") == []
    assert {*Noting.seen} == ({(WIDTH, 1, 2)} if is_turned else {(WIDTH, 0)})


def test_a_module_that_is_evaluated_stays_so_in_a_stage_that_is_cut() -> None:
    program = one_f_one_b(devices=2, microbatches=4)
    drops = [nn.Dropout(0.5).eval() for _ in range(2)]
    case = Trained(program, [nn.Sequential(nn.Linear(WIDTH, WIDTH), drop) for drop in drops])
    assert case.differences("all") == []
    assert not any(drop.training for drop in drops)
    assert len(pieces_in(case.program)) == 2


def test_a_sequence_is_not_cut_into_more_layers_than_it_has() -> None:
    with pytest.raises(InputError, match="does not show its segments"):
        segments_of(sequence(3), [Layer.PLAIN] * 4)


def train_in_rank(name: str) -> list[str]:
    program = program_of(name)
    case = Trained(program, stages_of(program))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HeldTensors, "offload", slowly)
        found = case.differences("all")
    return found + ["whole stages"] * (-1 in pieces_in(case.program))


def test_nothing_changes_where_copies_of_layers_are_late() -> None:
    """In processes, where copies run on threads of their own."""
    assert run(2, train_in_rank, "zbv") == [[], []]


def evaluations(transport: Carrier | Literal["loopback"]) -> list[float]:
    """Before and after a step, where what a first stage returns depends on no weight."""
    torch.manual_seed(0)
    stages = [nn.Sequential(nn.Tanh(), nn.Flatten()), nn.Linear(WIDTH, WIDTH)]
    program, (data, *_) = one_f_one_b(devices=2, microbatches=2), batches(4, 1)
    settings: dict[str, Any] = {"optimizer": momentum, "offload": "all"}
    with Pipeline(stages, program, loss=squared, transport=transport, **settings) as pipeline:
        assert pieces_in(pipeline.program) == {2, 6}
        before = pipeline.evaluate([data]).loss
        pipeline.step(*data)
        return [before, pipeline.evaluate([data]).loss]


def test_an_evaluation_knows_what_the_last_layer_of_a_stage_returns() -> None:
    """Receives over gloo are posted by it."""
    assert run(2, evaluations, "gloo") == [evaluations("loopback")] * 2
