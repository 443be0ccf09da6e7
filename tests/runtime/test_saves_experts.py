"""Saves of expert ranks: each writes the rows that it holds apart, and any layout finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load as torch_load

from tests.runtime.models import adam, squared
from tests.runtime.ranks import run
from tests.runtime.test_expert_ranks import Place, batch_of, blocks_of
from weft.lower import replicated
from weft.runtime import Pipeline, Reference
from weft.runtime.experts import Emulated
from weft.runtime.experts.apart import apart_of
from weft.schedules import one_f_one_b

PROGRAM = one_f_one_b(devices=2, microbatches=2)
TWICE = replicated(PROGRAM, 2, expert_ranks=2)
ROWS = 4  # of each replica's share
OPTIONS: dict[str, dict[str, Any]] = {"plain": {}, "sharded": {"shard_optimizer": True}}


def trained(pipeline: Pipeline, place: Place, steps: range) -> list[float]:
    """The losses of these steps, on the share of this replica."""
    rows = slice(place.replica * ROWS, (place.replica + 1) * ROWS)
    given = ((data[rows] for data in batch_of(step, 2 * ROWS)) for step in steps)
    return [float(pipeline.step(*share).loss) for share in given]


def resumed_as(name: str, place: Place, folder: Path) -> list[str]:
    """What differs, if in a bit, between a run that went on and one that was resumed."""
    options = {**OPTIONS[name], "mesh": place.mesh, "loss": squared, "optimizer": adam}
    with Pipeline(blocks_of(2, place.group), PROGRAM, clip=0.05, seed=5, **options) as pipeline:
        trained(pipeline, place, range(2))
        pipeline.save(folder / name)
        losses = trained(pipeline, place, range(2, 4))
    stages = blocks_of(2, place.group)
    for weight in nn.ModuleList(stages).parameters():
        nn.init.zeros_(weight)
    with Pipeline(stages, PROGRAM, clip=0.05, seed=6, **options) as other:
        other.load(folder / name)
        parts = {
            f"{stage}.{key}": (weight.detach().clone(), *apart_of(weight))
            for (_, stage), module in other.modules.items()
            for key, weight in module.named_parameters()
        }
        torch.save(parts, folder / f"{name} {dist.get_rank()}.pt")
        again = trained(other, place, range(2, 4))
    return [] if again == losses else [f"{name}: {again}, not {losses}"]


def resumed(folder: Path) -> list[str]:
    """In each rank of expert parallel 2 x pipeline 2."""
    place = Place.of({"ep": 2, "pp": 2})
    return [text for name in OPTIONS for text in resumed_as(name, place, folder)]


def test_rows_of_experts_are_saved_and_found_whole(tmp_path: Path) -> None:
    assert run(4, resumed, tmp_path) == [[]] * 4
    for name in OPTIONS:
        stages = blocks_of(2)
        Pipeline(stages, PROGRAM, loss=squared, optimizer=adam).load(tmp_path / name)
        here, whole = (nn.Sequential(*one).state_dict() for one in (stages, blocks_of(2)))
        torch_load({"model": whole}, checkpoint_id=tmp_path / name, no_dist=True)
        assert all(torch.equal(here[key], one) for key, one in whole.items())
        emulated = blocks_of(2, Emulated(2))
        reference = Reference(emulated, TWICE, loss=squared, optimizer=adam, clip=0.05)
        reference.load(tmp_path / name)
        for key, one in nn.Sequential(*emulated).state_dict().items():
            assert torch.equal(whole[key], one)
        found = [torch.load(tmp_path / f"{name} {rank}.pt") for rank in range(4)]
        rows = [(key, *one) for each in found for key, one in each.items()]
        assert any(parts > 1 for *_, parts in rows)
        for key, weight, part, parts in rows:
            assert torch.equal(whole[key].chunk(parts)[part], weight)
