"""What else a save keeps: extra state of modules, gradients that wait; and who writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from tests.runtime.models import batches, layers, likelihood, squared, tied, words
from tests.runtime.ranks import run
from tests.runtime.saving import LAYERS, is_equal, pipeline_of, program_of, state_of, trained
from weft.errors import SaveError
from weft.lower import replicated
from weft.runtime import Pipeline, Reference, Scale, split
from weft.runtime.experts.apart import hold_apart
from weft.runtime.experts.group import OneRank
from weft.runtime.saves.division import Offer, writers
from weft.runtime.saves.regions import region_of
from weft.runtime.saves.tensors import ChunkName
from weft.schedules import gpipe, one_f_one_b

PROGRAM = one_f_one_b(devices=2, microbatches=4)
DATA = batches(16, 5)

Offers: TypeAlias = dict[ChunkName, Offer]


# extra state


class Counting(nn.Module):
    """Keeps what it has seen where a state_dict finds it by get_extra_state alone."""

    def __init__(self, kept: Any = None) -> None:
        super().__init__()
        self.linear, self.kept = nn.Linear(8, 8), kept or {"calls": 0, "last": torch.zeros(1)}

    def forward(self, value: Tensor) -> Tensor:
        found: Tensor = self.linear(value)
        if torch.is_grad_enabled() and type(value) is Tensor:
            self.kept["calls"] = self.kept["calls"] + 1
            self.kept["last"] = found.detach().mean().reshape(1)
        return found

    def get_extra_state(self) -> Any:
        return self.kept

    def set_extra_state(self, state: Any) -> None:
        self.kept = state


def counting(program: Any = PROGRAM, **kept: Any) -> Pipeline:
    torch.manual_seed(1)
    stages = split(nn.Sequential(*(Counting(**kept) for _ in range(4))), stages=program.stages)
    return pipeline_of(program, stages=stages)


def kept_in(pipeline: Pipeline) -> list[Any]:
    every = [one for module in pipeline.modules.values() for one in module.modules()]
    return [one.kept for one in every if isinstance(one, Counting)]


def test_extra_state_of_modules_is_saved_under_their_names(tmp_path: Path) -> None:
    """Also for another cut; nothing of it is a pickle."""
    pipeline = counting()
    trained(pipeline, DATA[:2])
    wanted = kept_in(pipeline)
    assert wanted[0]["calls"] >= 8
    pipeline.save(tmp_path / "save")
    for other in (counting(), counting(gpipe(devices=4, microbatches=4))):
        other.load(tmp_path / "save")
        assert is_equal(dict(enumerate(kept_in(other))), dict(enumerate(wanted)))
    known = json.loads((tmp_path / "save" / "weft.json").read_text())
    assert set(known["extras"]) == {f"{index}._extra_state" for index in range(4)}
    with pytest.raises(SaveError, match=r"0\._extra_state.* which the model does not"):
        pipeline_of(PROGRAM, stages=[nn.Linear(8, 8) for _ in range(2)]).load(tmp_path / "save")


def test_extra_state_that_only_a_pickle_could_hold_is_refused_by_name(tmp_path: Path) -> None:
    pipeline = counting(kept={"seen": {1, 2}})
    with pytest.raises(SaveError, match=r"extra.0._extra_state.seen is of type set"):
        pipeline.save(tmp_path / "save")
    assert not [*tmp_path.iterdir()]


# gradients that wait


PILED: dict[str, tuple[str, dict[str, Any]]] = {
    "two pipes": ("chimera", {}),
    "stale": ("pipedream-2bw", {}),
    "tied": ("1f1b", {"stages": tied, "loss": likelihood}),
    "float16": ("1f1b", {"precision": "fp16", "scale": Scale(2.0**10, 2)}),
}


@pytest.mark.parametrize("case", PILED)
def test_gradients_that_wait_for_an_update_are_saved(case: str, tmp_path: Path) -> None:
    """Bit for bit, though the run is saved between steps whose gradients are added up."""
    name, settings = PILED[case]
    program, make = program_of(name, 2), settings.pop("stages", None)
    data = words(16, 4) if make is not None else DATA

    def made() -> Pipeline:
        stages = {} if make is None else {"stages": make(program.stages)}
        return pipeline_of(program, **settings, **stages)

    pipeline, resumed = made(), made()
    pipeline.step(*data[0])
    pipeline.step(*data[1], update=False)
    pipeline.save(tmp_path / "save")
    resumed.load(tmp_path / "save")
    resumed.save(tmp_path / "again")
    losses = trained(pipeline, data[2:4])
    assert is_equal(losses, trained(resumed, data[2:4]))
    assert is_equal(state_of(pipeline), state_of(resumed))
    other = made()
    other.load(tmp_path / "again")
    assert is_equal(losses, trained(other, data[2:4]))


def test_another_layout_adds_the_same_gradients(tmp_path: Path) -> None:
    """The sum of all copies is with the first, and is what plain torch has of both batches."""
    program = replicated(one_f_one_b(devices=2, microbatches=2), 2)
    settings: dict[str, Any] = {"clip": None, "scheduler": None, "optimizer": descent}
    pipeline = pipeline_of(program, stages=split(still(), stages=2), **settings)
    pipeline.step(*DATA[0], update=False)
    pipeline.save(tmp_path / "save")
    other = pipeline_of(
        gpipe(devices=4, microbatches=4), stages=split(still(), stages=4), **settings
    )
    other.load(tmp_path / "save")
    other.step(*DATA[1])
    model = still()
    for batch, target in DATA[:2]:
        torch.autograd.backward(squared(model(batch), target))
    descent([*model.named_parameters()]).step()
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(state_of(other)[name], weight, rtol=1e-5, atol=1e-6)


def descent(named: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([weight for _, weight in named], lr=0.1)


def still() -> nn.Sequential:
    model = layers(LAYERS)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def test_gradients_that_cannot_be_added_are_refused(tmp_path: Path) -> None:
    pipeline = pipeline_of(PROGRAM)
    pipeline.step(*DATA[0], update=False)
    pipeline.save(tmp_path / "save")
    with pytest.raises(SaveError, match="their loss is scaled there or here alone"):
        pipeline_of(PROGRAM, precision="fp16").load(tmp_path / "save")
    reference = Reference(split(layers(LAYERS), stages=2), PROGRAM, loss=squared)
    with pytest.raises(SaveError, match="a reference does not take"):
        reference.load(tmp_path / "save")
    spoilt = pipeline_of(PROGRAM, nonfinite="skip")
    spoilt.step(DATA[0][0], DATA[0][1] / 0, update=False)
    with pytest.raises(SaveError, match=r"the loss of step 1 is .*: save after the update"):
        spoilt.save(tmp_path / "spoilt")


# which part, and who writes


def test_rows_that_are_held_apart_are_a_part_of_the_whole() -> None:
    module = nn.Linear(3, 4, bias=False)
    hold_apart(module, Second())
    assert region_of(module.weight) == ((4, 0), (4, 3), (8, 3))
    assert region_of(nn.Linear(3, 4).weight).is_whole


class Second(OneRank):
    """The second rank of two."""

    rank, size = 1, 2


def test_what_several_have_is_divided_by_bytes() -> None:
    """What one alone has counts first; what may differ among copies is the first one's."""
    sizes = {"large": 60, "middle": 40, "small": 25}
    shared: Offers = {(name, (0,)): Offer(size, is_alike=True) for name, size in sizes.items()}
    own: Offers = {("own", (0,)): Offer(30, is_alike=True)}
    running: Offers = {("running", (0,)): Offer(50, is_alike=False)}
    found = writers([{**shared, **running}, {**running, **shared, **own}])
    assert {name: process for (name, _), process in found.items()} == {
        "running": 0,
        "own": 1,
        "large": 1,
        "middle": 0,
        "small": 0,
    }


def written_by_replicas(folder: Path) -> None:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "pp"))
    with pipeline_of(one_f_one_b(devices=1, microbatches=4), mesh=mesh) as pipeline:
        pipeline.step(*DATA[0])
        pipeline.save(folder)


def test_replicas_share_the_writing_and_write_everything_once(tmp_path: Path) -> None:
    run(2, written_by_replicas, tmp_path / "save")
    known = json.loads((tmp_path / "save" / "weft.json").read_text())
    assert all(len(chunks) == 1 for _, _, chunks in known["tensors"].values())
    assert len(known["optimizers"]) == 1
    sizes = [(tmp_path / "save" / f"__{rank}_0.distcp").stat().st_size for rank in range(2)]
    assert max(sizes) < 1.2 * min(sizes)
