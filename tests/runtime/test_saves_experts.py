"""Saves of expert ranks: each writes the rows that it holds apart, and any layout finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load as torch_load

from tests.runtime.models import adam, squared
from tests.runtime.ranks import run
from tests.runtime.test_emulated import undropped
from tests.runtime.test_expert_ranks import Place, batch_of, blocks_of
from weft.errors import SaveError
from weft.lower import replicated
from weft.runtime import Pipeline, Reference
from weft.runtime.experts import ALONE, Emulated, ExpertGroup, ExpertRanks
from weft.runtime.experts.apart import apart_of, hold_apart
from weft.runtime.weights.options import NamedParameters
from weft.schedules import one_f_one_b

PROGRAM = one_f_one_b(devices=2, microbatches=2)
TWICE = replicated(PROGRAM, 2, expert_ranks=2)
ROWS = 4  # of each replica's share


def adafactor(named: NamedParameters) -> torch.optim.Optimizer:
    """Keeps factors of second moments: a number for each row or column of each expert."""
    return torch.optim.Adafactor([weight for _, weight in named])


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"optimizer": adam},
    "sharded": {"optimizer": adam, "shard_optimizer": True},
    "factored": {"optimizer": adafactor},
}


def share_of(place: Place, step: int) -> tuple[Tensor, Tensor]:
    """The share of this replica."""
    rows = slice(place.replica * ROWS, (place.replica + 1) * ROWS)
    batch, target = batch_of(step, 2 * ROWS)
    return batch[rows], target[rows]


def trained(pipeline: Pipeline, place: Place, steps: range) -> list[float]:
    """The losses of these steps."""
    return [float(pipeline.step(*share_of(place, step)).loss) for step in steps]


def resumed_as(name: str, place: Place, folder: Path) -> list[str]:
    """What differs, if in a bit, between a run that went on and one that was resumed."""
    options = {**OPTIONS[name], "mesh": place.mesh, "loss": squared}
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
    for name, options in OPTIONS.items():
        stages, optimizer = blocks_of(2), options["optimizer"]
        Pipeline(stages, PROGRAM, loss=squared, optimizer=optimizer).load(tmp_path / name)
        here, whole = (nn.Sequential(*one).state_dict() for one in (stages, blocks_of(2)))
        torch_load({"model": whole}, checkpoint_id=tmp_path / name, no_dist=True)
        assert all(torch.equal(here[key], one) for key, one in whole.items())
        emulated = blocks_of(2, Emulated(2))
        reference = Reference(emulated, TWICE, loss=squared, optimizer=optimizer, clip=0.05)
        reference.load(tmp_path / name)
        for key, one in nn.Sequential(*emulated).state_dict().items():
            assert torch.equal(whole[key], one)
        found = [torch.load(tmp_path / f"{name} {rank}.pt") for rank in range(4)]
        rows = [(key, *one) for each in found for key, one in each.items()]
        assert any(parts > 1 for *_, parts in rows)
        for key, weight, part, parts in rows:
            assert torch.equal(whole[key].chunk(parts)[part], weight)


# gradients that wait for an update

LAYOUTS = {"experts apart": {"ep": 2, "pp": 1}, "replicas": {"dp": 2, "ep": 1, "pp": 1}}


def still(group: ExpertGroup) -> list[nn.Module]:
    """Layers that draw nothing, so that a microbatch may be on any replica."""
    return undropped(blocks_of(1, group))


def doubled(given: tuple[Tensor, Tensor]) -> list[Tensor]:
    return [one.double() for one in given]


def descent(named: NamedParameters) -> torch.optim.Optimizer:
    return torch.optim.SGD([weight for _, weight in named], lr=0.1)


def pipeline_at(place: Place) -> Pipeline:
    program = one_f_one_b(devices=1, microbatches=2)
    return Pipeline(
        still(place.group), program, mesh=place.mesh, loss=squared, optimizer=descent, deadline=30.0
    )


def piled_up(layout: str, folder: Path) -> None:
    """In each of two ranks: save after a step without an update."""
    place = Place.of(LAYOUTS[layout])
    with pipeline_at(place) as pipeline:
        pipeline.step(*doubled(share_of(place, 0)), update=False)
        pipeline.save(folder)


def added(layout: str, folder: Path) -> list[str]:
    """In each of two ranks: what differs from plain torch after the step with the update."""
    place, (whole,) = Place.of(LAYOUTS[layout]), still(ALONE)
    for step in range(2):
        batch, target = doubled(batch_of(step, 2 * ROWS))
        torch.autograd.backward(squared(whole(batch), target))
    descent([*whole.named_parameters()]).step()
    with pipeline_at(place) as pipeline:
        pipeline.load(folder)
        pipeline.step(*doubled(share_of(place, 1)))
        (module,) = pipeline.modules.values()
        found = []
        for name, weight in module.named_parameters():
            part, parts = apart_of(weight)
            wanted = whole.get_parameter(name).chunk(parts)[part]
            if not torch.allclose(weight, wanted, rtol=1e-5, atol=1e-6):
                found.append(name)
        return found


@pytest.mark.parametrize("first", LAYOUTS)
@pytest.mark.parametrize("second", LAYOUTS)
def test_gradients_that_wait_find_their_rows(first: str, second: str, tmp_path: Path) -> None:
    run(2, piled_up, first, tmp_path / "save")
    assert run(2, added, second, tmp_path / "save") == [[], []]


# what is not of the shape of a weight


class Numbered(nn.Module):
    """Experts that know, by a buffer which no state_dict has, which of all they are."""

    def __init__(self, group: ExpertRanks) -> None:
        super().__init__()
        self.group, self.rows = group, nn.Linear(4, 4, bias=False)
        hold_apart(self.rows, group)
        self.register_buffer("number", torch.tensor(group.rank), persistent=False)
        self.number: Tensor

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.rows(value) * (1 + self.number)
        return out


def numbered(folder: Path) -> int:
    """In each of two expert ranks: its number after a save was loaded."""
    place = Place.of({"ep": 2, "pp": 1})
    program, data = one_f_one_b(devices=1, microbatches=1), torch.ones(2, 4)
    with Pipeline([Numbered(place.group)], program, mesh=place.mesh, loss=squared) as pipeline:
        pipeline.step(data, data)
        pipeline.save(folder)
        pipeline.load(folder)
        return int(pipeline.modules[place.replica, 0].get_buffer("number"))


def test_what_each_expert_rank_makes_for_itself_stays_its_own(tmp_path: Path) -> None:
    assert run(2, numbered, tmp_path / "save") == [0, 1]


class Lengths(torch.optim.SGD):
    """Keeps a number for each column of a weight."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight]["lengths"] = weight.detach().flatten(0, -2).norm(dim=0)


def kept_by_column(folder: Path) -> str:
    place = Place.of({"ep": 2, "pp": 1})
    program, data = one_f_one_b(devices=1, microbatches=1), torch.ones(2, 4)
    with Pipeline(
        [Numbered(place.group)], program, mesh=place.mesh, loss=squared,
        optimizer=lambda named: Lengths([weight for _, weight in named]),
    ) as pipeline:  # fmt: skip
        pipeline.step(data, data)
        with pytest.raises(SaveError) as caught:
            pipeline.save(folder)
    return str(caught.value)


def test_state_of_which_nobody_knows_the_rows_is_refused(tmp_path: Path) -> None:
    for said in run(2, kept_by_column, tmp_path / "save"):
        assert "lengths is kept for a weight of which each rank has a part" in said
