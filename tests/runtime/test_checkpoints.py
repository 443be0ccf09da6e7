"""Weights from a checkpoint: files of several kinds, by names in the whole model, one by one."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.runtime.models import VOCABULARY, WIDTH, Norm, likelihood, linear, squared, tied, words
from tests.runtime.ranks import run
from weft.errors import InputError
from weft.ir.program import Program
from weft.runtime import Pipeline, Reference, split
from weft.runtime.initial.checkpoint import Initial
from weft.schedules import one_f_one_b

META = torch.device("meta")


def model() -> nn.Sequential:
    """With buffers, and with a weight that has two names."""
    table, head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
    head.weight = table.weight
    return nn.Sequential(table, Norm(), Norm(), head)


def on_meta() -> nn.Sequential:
    with META:
        return model()


def trained_model() -> nn.Sequential:
    """Whose buffers are not those of a new one."""
    torch.manual_seed(5)
    made = model()
    for batch, _ in words(8, 2):
        made(batch)
    return made


def program(devices: int) -> Program:
    return one_f_one_b(devices=devices, microbatches=2)


# kinds of files


def once(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As Hugging Face saves: a weight with two names once."""
    return {name: one.clone() for name, one in state.items() if name != "3.weight"}


def single(folder: Path, state: Mapping[str, Tensor]) -> Initial:
    save_file(once(state), folder / "any.safetensors")
    return folder / "any.safetensors"


def in_folder(folder: Path, state: Mapping[str, Tensor]) -> Initial:
    save_file(once(state), folder / "model.safetensors")
    return str(folder)


def sharded(folder: Path, state: Mapping[str, Tensor]) -> Initial:
    """The whole of a stage in one file: the name of the file begins with the stage's."""
    files: dict[str, dict[str, Tensor]] = {}
    for name, tensor in once(state).items():
        files.setdefault(f"{name[0]}.safetensors", {})[name] = tensor
    for file, tensors in files.items():
        save_file(tensors, folder / file)
    index = {"weight_map": {name: file for file, tensors in files.items() for name in tensors}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def state_dict(folder: Path, state: Mapping[str, Tensor]) -> Initial:
    torch.save(state, folder / "any.pt")
    return folder / "any.pt"


def mapping(_folder: Path, state: Mapping[str, Tensor]) -> Initial:
    return dict(state)


KINDS = [single, in_folder, sharded, state_dict, mapping]


@pytest.mark.parametrize("kind", KINDS)
def test_a_pipeline_starts_with_what_was_saved(
    kind: Callable[[Path, Mapping[str, Tensor]], Initial], tmp_path: Path
) -> None:
    whole = trained_model()
    wanted = copy.deepcopy(whole.state_dict())
    initial = kind(tmp_path, wanted)
    for given in (on_meta(), model()):  # loaded over weights that are there as well
        cut = split(given, stages=2)
        pipeline = Pipeline(cut, program(2), loss=likelihood, initial=initial)
        state = {k: v for one in pipeline.modules.values() for k, v in one.state_dict().items()}
        assert state.keys() == wanted.keys()
        assert all(torch.equal(state[name], wanted[name]) for name in wanted)


def losses(stages: int, initial: Initial) -> list[str]:
    with Pipeline(
        split(on_meta(), stages=stages), program(stages), loss=likelihood, initial=initial
    ) as pipeline:
        return [float(pipeline.step(*one).loss).hex() for one in words(8, 2)]


def losses_without_the_other_files(folder: Path) -> list[str]:
    """In each rank, which sees its own shard alone, and the one with the weight of both."""
    mine = folder / str(dist.get_rank())
    mine.mkdir()
    (mine / "model.safetensors.index.json").write_text(
        (folder / "model.safetensors.index.json").read_text()
    )
    for stage in range(4):
        there = stage == 0 or stage // 2 == dist.get_rank()
        whole = (folder / f"{stage}.safetensors").read_bytes()
        (mine / f"{stage}.safetensors").write_bytes(whole if there else b"nothing of use")
    return losses(2, mine)


def test_ranks_read_their_own_weights_alone(tmp_path: Path) -> None:
    whole = trained_model()
    sharded(tmp_path, whole.state_dict())
    cut = split(copy.deepcopy(whole), stages=2)
    reference = Reference(cut, program(2), loss=likelihood)
    wanted = [float(reference.step(*one)).hex() for one in words(8, 2)]
    assert run(2, losses_without_the_other_files, tmp_path) == [wanted] * 2
    assert losses(2, tmp_path) == wanted


class Lazy(Mapping[str, Tensor]):
    """Notes what is asked for, and how much of it is there at once."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors, self.asked = tensors, list[str]()

    def __getitem__(self, name: str) -> Tensor:
        self.asked.append(name)
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def asked_for() -> set[str]:
    """In each rank: what is read of a mapping."""
    lazy = Lazy(trained_model().state_dict())
    losses(2, lazy)
    return set(lazy.asked)


def test_nothing_of_other_ranks_is_asked_of_a_mapping() -> None:
    first, second = run(2, asked_for)
    assert first | second == {*model().state_dict()}
    assert first & second == {"0.weight"}
    assert "3.weight" not in first  # the other name of it, in the second stage


def test_values_get_the_type_of_the_weights() -> None:
    whole = trained_model()
    halves = {name: tensor.to(torch.bfloat16) for name, tensor in whole.state_dict().items()}
    pipeline = Pipeline(split(on_meta(), stages=2), program(2), loss=likelihood, initial=halves)
    weight = pipeline.modules[0, 0].get_parameter("1.line.weight")
    assert weight.dtype is torch.float32
    assert torch.equal(weight, halves["1.line.weight"].float())


def test_types_are_looked_at_in_files(tmp_path: Path) -> None:
    """Also those of a weight without dimensions."""
    stage = nn.Linear(WIDTH, WIDTH)
    stage.scale = nn.Parameter(torch.tensor(1.0))
    whole = {f"0.{name}": one for name, one in stage.state_dict().items()}
    save_file({**whole, "0.scale": torch.tensor(1)}, tmp_path / "x.safetensors")
    with pytest.raises(InputError, match=r"0\.scale torch\.int64 for torch\.float32; these are no"):
        Pipeline([stage], program(1), loss=squared, initial=tmp_path / "x.safetensors")


def test_a_tied_weight_has_one_value() -> None:
    """A model that is not tied was saved: which of its weights is meant is not known."""
    stages = tied(2)
    saved = {f"{i}.{n}": one for i, s in enumerate(stages) for n, one in s.state_dict().items()}
    table, head = "0.0.weight", "1.1.weight"
    Pipeline(stages, program(2), loss=likelihood, initial=saved)
    one = {name: tensor for name, tensor in saved.items() if name != table}
    Pipeline(tied(2), program(2), loss=likelihood, initial=one)
    several = {**saved, head: saved[head] + 1}
    with pytest.raises(InputError, match=rf"different values for {table}, {head}; they are one"):
        Pipeline(tied(2), program(2), loss=likelihood, initial=several)


def test_names_of_a_list_of_stages_begin_with_their_number() -> None:
    whole = nn.Sequential(*linear(2))
    stages = [lambda: nn.Linear(WIDTH, WIDTH)] * 2
    pipeline = Pipeline(stages, program(2), loss=squared, initial=whole.state_dict())
    for index in range(2):
        made = pipeline.modules[0, index].state_dict()
        assert all(torch.equal(made[name], whole[index].state_dict()[name]) for name in made)


class Turned(nn.Linear):
    """Has a table that no checkpoint holds, and that `reset_parameters` computes."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.register_buffer("table", torch.arange(WIDTH) / 2, persistent=False)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if "table" in self._buffers:
            self.get_buffer("table").copy_(torch.arange(WIDTH) / 2)


def test_buffers_that_are_not_saved_are_computed() -> None:
    wanted = Turned()
    state = {"0.table": torch.zeros(1), **nn.Sequential(wanted).state_dict()}  # an old one has it
    with META:
        stages = [Turned()]
    Pipeline(stages, program(1), loss=squared, initial=state)
    assert torch.equal(stages[0].get_buffer("table"), wanted.get_buffer("table"))
    assert torch.equal(stages[0].weight, wanted.weight)


# what is refused

STATE = nn.Sequential(*linear(2)).state_dict()
INDEX = "model.safetensors.index.json"
REFUSED_NAMES: dict[str, dict[str, Tensor]] = {
    r"initial= has no 1\.weight; ": {n: t for n, t in STATE.items() if n != "1.weight"},
    r"has 2\.weight, gone; which the model does not have: its names are like '0\.bias'": (
        {**STATE, "2.weight": STATE["0.weight"], "gone": STATE["0.weight"]}
    ),
    r"other shapes than the model: 0\.weight \[3, 3\] for \[8, 8\], 1\.bias \[4\] for \[8\]": (
        {**STATE, "0.weight": torch.ones(3, 3), "1.bias": torch.ones(4)}
    ),
    r"other types than the model: 0\.weight torch\.int8 for torch\.float32": (
        {**STATE, "0.weight": STATE["0.weight"].to(torch.int8)}  # the scale is not there
    ),
}
REFUSED_FILES = {  # by what a file is called and has in it, and what is given of it
    r"nowhere: there is no such file or folder": ("x.txt", "", "nowhere"),
    r"neither model\.safetensors nor model\.safetensors\.index\.json, but \['x\.txt'\]": (
        ("x.txt", "", "")
    ),
    r"x\.txt: give a \.safetensors file, a folder": ("x.txt", "", "x.txt"),
    r"is not a safetensors file": ("x.safetensors", "nothing", "x.safetensors"),
    r"cannot be read tensor by tensor": ("x.bin", "nothing", "x.bin"),
    r"names files that are not there: \['2\.safetensors'\]": (
        (INDEX, '{"weight_map": {"0.weight": "2.safetensors"}}', "")
    ),
    r"is not the index of a sharded checkpoint": (INDEX, "[]", ""),
}


def refused(initial: Initial, text: str) -> None:
    stages = linear(2)
    before = copy.deepcopy(nn.Sequential(*stages).state_dict())
    with pytest.raises(InputError, match=text):
        Pipeline(stages, program(2), loss=squared, initial=initial)
    after = nn.Sequential(*stages).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("text", [*REFUSED_NAMES])
def test_what_does_not_fit_is_refused_before_a_weight_is_changed(text: str) -> None:
    refused(REFUSED_NAMES[text], text)


@pytest.mark.parametrize("text", [*REFUSED_FILES])
def test_what_is_no_checkpoint_is_refused(text: str, tmp_path: Path) -> None:
    file, content, given = REFUSED_FILES[text]
    (tmp_path / file).write_text(content)
    refused(tmp_path / given, text)


def test_a_file_with_more_than_weights_is_refused(tmp_path: Path) -> None:
    torch.save({"model": STATE}, tmp_path / "x.pt")
    refused(tmp_path / "x.pt", r"is not a state_dict: 'model' is of type .*Dict, not a tensor")
