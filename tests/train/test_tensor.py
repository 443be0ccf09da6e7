"""Ranks that share layers train as the whole model does, in pipelines and in copies of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.cli.test_plan_file import written
from tests.runtime.models import adam
from tests.runtime.plain import Plain
from tests.runtime.ranks import run
from tests.runtime.test_planned import DEVICE, SIZES, batch_of, loss
from weft.cli.jobs import Job, settings_of
from weft.cost import Layout
from weft.models import gpt, share_layers
from weft.request import Plan, Sizes, Source, Training
from weft.runtime import Pipeline
from weft.runtime.planned import mesh_of
from weft.schedules import one_f_one_b
from weft.train import Settings, checked, trained

MODEL = replace(SIZES, layers=2)
STEPS, MICROBATCHES = 2, 2


def plan_of(devices: int, layout: Layout) -> Plan:
    program = one_f_one_b(devices=devices, microbatches=MICROBATCHES)
    return Plan(program=program, layout=layout, model=MODEL, device=DEVICE)


PIPELINE = plan_of(2, Layout(layers=(1, 1), tensor=2))
COPIES = plan_of(1, Layout(layers=(2,), tensor=2, replicas=2, is_sharded=False))


def model() -> nn.Sequential:
    torch.manual_seed(0)
    sizes = {"layers": MODEL.layers, "hidden": MODEL.hidden, "heads": MODEL.heads}
    return gpt(MODEL.vocabulary, context=MODEL.sequence, **sizes).double()


def settings_by(path: str) -> Settings:
    return settings_of(Job("1f1b", Sizes(), Training(steps=STEPS), Source(), plan=Path(path)))


def shared(*paths: str) -> tuple[list[list[float]], list[float], int]:
    """In each rank: the losses of jobs by plans, and of a model that its user has shared."""
    found = [[one.loss for one in trained(settings_by(path)).metrics] for path in paths]
    mesh = mesh_of(PIPELINE)
    assert mesh is not None
    own = share_layers(model(), mesh["tp"])
    matrix = own.get_parameter("block0.perceptron.1.weight")
    with Pipeline.from_plan(own, PIPELINE, mesh=mesh, loss=loss, optimizer=adam) as pipeline:
        rows = MICROBATCHES * MODEL.microbatch
        losses = [float(pipeline.step(*batch_of(step, rows)).loss) for step in range(STEPS)]
    return found, losses, len(matrix) // len(matrix.to_local())  # type: ignore[attr-defined]


def test_layers_that_ranks_share_train_as_the_unsplit_model(tmp_path: Path) -> None:
    paths = []
    for name, plan in {"pipeline": PIPELINE, "copies": COPIES}.items():
        (tmp_path / name).mkdir()
        paths.append(written(tmp_path / name, plan))
    wanted = [checked(settings_by(path)) for path in paths]
    plain = Plain(model(), microbatches=MICROBATCHES, loss=loss, optimizer=adam)
    rows = MICROBATCHES * MODEL.microbatch
    theirs = [float(plain.step(*batch_of(step, rows))) for step in range(STEPS)]
    for found, own, parts in run(4, shared, *paths):
        assert found == [pytest.approx(losses, rel=1e-5) for losses in wanted]
        assert own == pytest.approx(theirs, rel=1e-10)
        assert parts == 2
