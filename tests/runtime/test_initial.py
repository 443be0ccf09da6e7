"""Stages are made where they run, from weights that do not depend on who makes them."""

from __future__ import annotations

import copy
import random
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.runtime.models import (
    VOCABULARY,
    WIDTH,
    Norm,
    batches,
    likelihood,
    linear,
    plain_descent,
    squared,
    words,
)
from tests.runtime.ranks import run
from weft.errors import InputError
from weft.ir.program import Program
from weft.runtime import Pipeline, Reference, Stages, split
from weft.runtime.batch import checksum
from weft.runtime.device.place import real
from weft.schedules import chimera, one_f_one_b

META = torch.device("meta")
DATA = words(8, 2)


def model() -> nn.Sequential:
    """What torch has to set: tables, attention, norms, statistics, a weight with two names."""
    table, head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
    head.weight = table.weight
    attention = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.1)
    return nn.Sequential(table, attention, Norm(), head)


def on_meta() -> nn.Sequential:
    with META:
        return model()


class Words:
    """Functions of two stages that share a table, as can be seen on meta alone."""

    def first(self) -> nn.Module:
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        return self.table

    def last(self) -> nn.Module:
        head = nn.Linear(WIDTH, VOCABULARY)
        if head.weight.is_meta:
            head.weight = self.table.weight
        return head


def functions() -> list[Callable[[], nn.Module]]:
    made = Words()
    return [made.first, Norm, Norm, made.last]


GIVEN: dict[str, Callable[[int], Sequence[Any]]] = {
    "on meta": lambda stages: split(on_meta(), stages=stages),
    "functions": lambda stages: functions(),
}


class Trained(NamedTuple):
    """Losses, and sums of all weights and buffers by stage, before and after."""

    losses: list[str]
    before: dict[int, str]
    after: dict[int, str]


def sums(pipeline: Pipeline) -> dict[int, str]:
    items = pipeline.modules.items()
    return {stage: checksum([tuple(one.state_dict().values())]) for (_, stage), one in items}


def trained(given: str, program: Program) -> Trained:
    stages = GIVEN[given](program.stages)
    with Pipeline(stages, program, loss=likelihood, optimizer=plain_descent, seed=3) as pipeline:
        before = sums(pipeline)
        losses = [float(pipeline.step(*one).loss).hex() for one in DATA]
        return Trained(losses, before, sums(pipeline))


def program(devices: int) -> Program:
    return one_f_one_b(devices=devices, microbatches=2)


# the same, whoever makes them


@pytest.mark.parametrize(("given", "ranks"), [("on meta", 2), ("on meta", 4), ("functions", 4)])
def test_ranks_start_and_end_with_the_weights_of_one_process(given: str, ranks: int) -> None:
    alone = trained(given, program(ranks))
    found = run(ranks, trained, given, program(ranks))
    for rank, one in enumerate(found):
        assert one == Trained(alone.losses, {rank: alone.before[rank]}, {rank: alone.after[rank]})


@pytest.mark.parametrize("given", [*GIVEN])
def test_the_reference_starts_and_ends_with_the_same_weights(given: str) -> None:
    wanted = trained(given, program(4))
    stages = GIVEN[given](4)
    reference = Reference(stages, program(4), loss=likelihood, optimizer=plain_descent, seed=3)
    losses = [float(reference.step(*one)).hex() for one in DATA]
    assert losses == wanted.losses


def weights(stages: int, **settings: Any) -> dict[str, Tensor]:
    """What a pipeline of as many stages starts with, by name in the whole model."""
    cut = split(on_meta(), stages=stages)
    pipeline = Pipeline(cut, program(stages), loss=likelihood, **settings)
    return {
        name: tensor
        for module in pipeline.modules.values()
        for name, tensor in module.state_dict().items()
    }


def test_weights_depend_on_names_and_the_seed_alone() -> None:
    two, four, other = weights(2), weights(4), weights(4, seed=1)
    assert two.keys() == four.keys() == model().state_dict().keys()
    assert all(torch.equal(two[name], four[name]) for name in two)
    assert not torch.equal(other["0.weight"], four["0.weight"])
    assert torch.equal(four["0.weight"], four["3.weight"])


@pytest.mark.parametrize("function", [lambda: nn.Linear(WIDTH, WIDTH), None])
def test_stages_of_a_kind_draw_for_themselves(function: Any) -> None:
    stages = [function] * 2 if function else linear_on_meta(2)
    pipeline = Pipeline(stages, program(2), loss=squared)
    one, other = (module.get_parameter("weight") for module in pipeline.modules.values())
    assert not torch.equal(one, other)


def test_weights_are_those_of_plain_torch() -> None:
    """Exactly where torch draws nothing, and as widely spread where it does."""
    found = weights(4)
    torch.manual_seed(0)
    plain, other = (model().state_dict() for _ in range(2))
    for name, tensor in found.items():
        if torch.equal(plain[name], other[name]):
            assert torch.equal(tensor, plain[name]), name
        else:
            assert 0.5 < float(tensor.std() / plain[name].std()) < 2, name


def test_generators_are_left_as_they_were() -> None:
    def states() -> tuple[Any, ...]:
        numpy: Any = np.random.get_state()
        return torch.get_rng_state().tolist(), random.getstate(), numpy[1].tolist()

    def drawing() -> nn.Module:
        torch.manual_seed(9)
        random.random()
        np.random.rand()
        return nn.Linear(WIDTH, WIDTH)

    before = states()
    Pipeline([drawing, *linear_on_meta(1)], program(2), loss=squared)
    assert states() == before


def linear_on_meta(count: int) -> list[nn.Module]:
    with META:
        return [nn.Linear(WIDTH, WIDTH) for _ in range(count)]


def test_copies_of_a_stage_start_alike() -> None:
    pipeline = Pipeline(linear_on_meta(2), chimera(devices=2, microbatches=2), loss=squared)
    one, other = (pipeline.modules[pipe, 0].get_parameter("weight") for pipe in range(2))
    assert torch.equal(one, other)
    assert one is not other


def test_a_module_of_several_stages_is_made_once() -> None:
    with META:
        shared = nn.Linear(WIDTH, WIDTH)
    pipeline = Pipeline([shared, nn.Tanh(), shared], program(3), loss=squared)
    first, _, last = pipeline.modules.values()
    assert torch.equal(first.get_parameter("weight"), last.get_parameter("weight"))
    pipeline.step(*batches(4, 1)[0])


def test_recurrent_modules_use_the_weights_that_they_got() -> None:
    """They list their weights a second time."""
    with META:
        module = nn.GRU(WIDTH, WIDTH)
    pipeline = Pipeline([module], program(1), loss=lambda output, _: output[0].sum())
    (batch, target), (made,) = batches(4, 1)[0], pipeline.modules.values()
    pipeline.step(batch, target)
    assert all(weight.grad is not None for weight in made.parameters())


def test_what_weights_are_besides_their_values_is_kept() -> None:
    """Whether they learn, their hooks, and what users note on them."""
    (stage,) = linear_on_meta(1)
    seen: list[Tensor] = []
    stage.get_parameter("weight").register_hook(seen.append)  # type: ignore[no-untyped-call]
    stage.get_parameter("weight").has_decay = False  # type: ignore[attr-defined]
    stage.get_parameter("bias").requires_grad_(False)
    pipeline = Pipeline([stage], program(1), loss=squared)
    pipeline.step(*batches(4, 1)[0])
    (made,) = pipeline.modules.values()
    assert made is stage
    assert len(seen) == 2
    assert not made.get_parameter("weight").has_decay  # type: ignore[attr-defined]
    assert not made.get_parameter("bias").requires_grad


# only where they run


def real_calls() -> list[int]:
    """In each rank: the stages that were made of anything but meta tensors."""
    made = []

    def function(stage: int) -> nn.Module:
        module = nn.Linear(WIDTH, WIDTH)
        if not module.weight.is_meta:
            made.append(stage)
        return module

    stages = [lambda stage=stage: function(stage) for stage in range(2)]
    with Pipeline(stages, program(2), loss=squared) as pipeline:
        pipeline.step(*batches(4, 1)[0])
    return made


def test_a_rank_makes_its_own_stages_alone() -> None:
    assert run(2, real_calls) == [[0], [1]]


SIDE, LAYERS, RANKS = 3540, 2, 4  # 48 MB a layer: what is freed of it goes back to the system
ROOM = 325 << 20  # for a stage, its gradients and one that is added: 240 MB; the whole has 384


def large() -> nn.Module:
    return nn.Sequential(*(nn.Linear(SIDE, SIDE, bias=False) for _ in range(LAYERS)))


def train_in_little_memory() -> tuple[str, list[float]]:
    """In each rank: how building the whole ends, and losses of the pipeline, under one limit."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (used,) = [int(line.split()[1]) << 10 for line in lines if line.startswith("VmData")]
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used + ROOM, most))
    said = "nothing"
    try:
        nn.Sequential(*(large() for _ in range(RANKS)))
    except (RuntimeError, MemoryError) as error:
        said = str(error)

    def descent(named: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([weight for _, weight in named], lr=1.0, foreach=False)

    batch = torch.ones(2, SIDE)
    with Pipeline([large] * RANKS, program(RANKS), loss=squared, optimizer=descent) as pipeline:
        return said, [float(pipeline.step(batch, batch).loss) for _ in range(2)]


def test_a_model_trains_whose_whole_does_not_fit_in_a_process() -> None:
    for said, (first, second) in run(RANKS, train_in_little_memory):
        assert "can't allocate memory" in said
        assert second < first


def test_what_is_on_meta_is_made_where_torch_makes_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert real(META) == cpu
    with META:
        assert real(META) == cpu
    monkeypatch.setattr(torch, "empty", lambda _, device: SimpleNamespace(device=device))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    for backend, device in (("gloo", cpu), ("cpu:gloo,cuda:nccl", gpu)):
        monkeypatch.setattr(dist, "get_backend", lambda said=backend: said)
        assert real(META) == device
    monkeypatch.setattr(torch, "get_default_device", lambda: gpu)
    monkeypatch.setattr(dist, "get_backend", lambda: "gloo")
    assert real(META) == gpu


# init


def ones(module: nn.Module) -> None:
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        nn.init.ones_(tensor)


def test_init_sets_what_stages_have_instead_of_reset_parameters() -> None:
    with META:
        stages = Stages([Norm(), Norm()], init=ones)
    pipeline = Pipeline(stages, program(2), loss=squared)
    for module in pipeline.modules.values():
        assert all(bool((one == 1).all()) for one in module.state_dict().values())


class Half(nn.Module):
    """A layer that has its child start from other values than the child would."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(WIDTH, WIDTH)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.line.weight, 0.5)

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.line(value)
        return out


def test_a_module_may_set_its_children_anew() -> None:
    with META:
        stages = [Half()]
    Pipeline(stages, program(1), loss=squared)
    assert bool((stages[0].line.weight == 0.5).all())
    assert float(stages[0].line.bias.detach().std()) > 0


# what is refused


class Scaled(nn.Module):
    """A weight that nothing but __init__ sets."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))


class Masked(nn.Linear):
    """A buffer that `reset_parameters` forgets."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.register_buffer("mask", torch.ones(WIDTH, dtype=torch.bool), persistent=False)


class Plain(nn.Linear):
    """A tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.shift = torch.ones(WIDTH)


class Counted:
    """Makes another module each time."""

    width = 3

    def __call__(self) -> nn.Module:
        self.width += 1
        return nn.Linear(WIDTH, self.width)


def made_on_meta(function: Callable[[], nn.Module]) -> nn.Module:
    with META:
        return function()


REFUSED: dict[str, Callable[[], Any]] = {
    r"stage 0, module 1 \(Scaled\): nothing sets scale, which is on meta\. Give the module a"
    r" reset_parameters\(\)": lambda: made_on_meta(lambda: nn.Sequential(nn.Tanh(), Scaled())),
    r"stage 0 \(Masked\): nothing sets mask": lambda: made_on_meta(Masked),
    r"stage 0 has a tensor on meta that is neither a weight nor a buffer: shift": (
        lambda: made_on_meta(Plain)
    ),
    r"the function of stage 0 cannot be called on the meta device, .* initial=": (
        lambda: lambda: nn.Linear(WIDTH, int(torch.ones(3).sum()))
    ),
    r"weight weight is on cpu: make the weight in the function": (
        lambda: lambda: nn.Linear(WIDTH, WIDTH, device="cpu")
    ),
    r"the function of stage 0 returns a value of type str; it has to": lambda: lambda: "Linear",
    r"the function of stage 0 returns another module than on the meta device": Counted,
    r"stage 0 is of type int; give a module, or a function": lambda: 3,
}


@pytest.mark.parametrize("text", [*REFUSED])
def test_what_cannot_be_made_is_refused_by_name(text: str) -> None:
    stages = [REFUSED[text](), nn.Identity()]
    with pytest.raises(InputError, match=text):
        Pipeline(stages, program(2), loss=squared)
    with pytest.raises(InputError, match=text):
        Reference([REFUSED[text](), nn.Identity()], program(2), loss=squared)


def test_modules_with_values_stay_as_they_are() -> None:
    stages = linear(2)
    wanted = copy.deepcopy([stage.state_dict() for stage in stages])
    Pipeline([stages[0], lambda: nn.Linear(WIDTH, WIDTH)], program(2), loss=squared)
    assert all(torch.equal(stages[0].state_dict()[name], wanted[0][name]) for name in wanted[0])


def failing() -> str:
    """In each rank: what is said where one of them cannot make its stage."""
    stages = [lambda: nn.Linear(WIDTH, WIDTH), lambda: made(dist.get_rank())]
    try:
        Pipeline(stages, program(2), loss=squared)
    except Exception as error:
        return str(error)
    return "nothing"


def made(rank: int) -> nn.Module:
    module = nn.Linear(WIDTH, WIDTH)
    if not module.weight.is_meta and rank == 1:
        raise OSError("no such file")
    return module


def test_a_rank_that_cannot_make_its_stage_ends_all() -> None:
    first, second = run(2, failing)
    assert "no such file" in second
    assert "device 1 failed" in first
    assert "no such file" in first
