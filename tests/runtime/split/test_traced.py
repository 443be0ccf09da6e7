"""Models of any kind, split by tracing: they train as they do in plain PyTorch, whole."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.exactness import differences
from tests.runtime.models import WIDTH, batches
from tests.runtime.ranks import over_transports
from tests.runtime.split.whole_models import MODELS, Output
from weft.ir.graph import Graph
from weft.ir.program import Program
from weft.runtime import Pipeline, Stages, split
from weft.schedules import REGISTRY, Shape, one_f_one_b
from weft.simulate import simulate

MICROBATCHES = 2


class Cut(NamedTuple):
    """A model, how it is split, and by what it is trained."""

    model: str
    options: dict[str, Any]
    schedule: str = "1f1b"
    is_evaluating: bool = False  # where it would draw something else than plain PyTorch

    def made(self) -> tuple[nn.Module, Any, Stages]:
        """The model, its batch and its stages."""
        model, batch = MODELS[self.model].made()
        model.train(not self.is_evaluating)
        return model, batch, split(model, example=batch, **self.options)

    def program(self, stages: Stages) -> Program:
        assert stages.graph is not None
        entry, is_branched = REGISTRY[self.schedule], self.options.get("branches")
        shape = Shape(devices=len(stages), microbatches=MICROBATCHES)
        of_graph = Shape.of_graph(stages.graph, microbatches=MICROBATCHES)
        return entry.program(of_graph if is_branched else shape)


CUTS = {
    "resnet at named modules": Cut("resnet", {"cuts": ["layer2", "layer3.1"]}),
    "resnet by flops": Cut("resnet", {"stages": 4, "balance": "flops"}),
    "unet": Cut("unet", {"stages": 3}, "zb-h1"),
    "towers as a chain": Cut("towers", {"stages": 3, "balance": "time"}),
    "towers": Cut("towers", {"stages": 5, "branches": True}),
    "towers by names": Cut("towers", {"cuts": ["right", "head"], "branches": True}, "gpipe"),
    "inception": Cut("inception", {"stages": 6, "branches": True}),
    "multimodal": Cut("multimodal", {"stages": 4, "branches": True}, "gpipe"),
    "words": Cut("words", {"stages": 4}, is_evaluating=True),
    "decides": Cut("decides", {"stages": 3}, is_evaluating=True),
}


def squared(output: Any, target: Tensor) -> Tensor:
    """Of all that a model returns."""
    leaves = [output.logits, *output.states] if isinstance(output, Output) else [output]
    leaves = [*output.values()] if isinstance(output, dict) else leaves
    return torch.stack([((leaf - target.mean()) ** 2).mean() for leaf in leaves]).sum()


def microbatches(batch: Any) -> list[Any]:
    if isinstance(batch, dict):
        parts = zip(*(leaf.chunk(MICROBATCHES) for leaf in batch.values()), strict=True)
        return [dict(zip(batch, part, strict=True)) for part in parts]
    if isinstance(batch, tuple):
        return [*zip(*(leaf.chunk(MICROBATCHES) for leaf in batch), strict=True)]
    return [*batch.chunk(MICROBATCHES)]


def called(model: nn.Module, given: Any) -> Any:
    if isinstance(given, dict):
        return model(**given)
    return model(*given) if isinstance(given, tuple) else model(given)


def merged(stages: Stages, what: str) -> dict[str, Any]:
    return dict(one for stage in stages for one in getattr(stage, what)())


@pytest.mark.parametrize("name", CUTS)
def test_a_step_is_that_of_the_whole_model(name: str) -> None:
    model, batch, stages = CUTS[name].made()
    assert stages.checked == "by value"
    whole, target = copy.deepcopy(model), torch.randn(4)
    losses = []
    for part, wanted in zip(microbatches(batch), target.chunk(MICROBATCHES), strict=True):
        losses.append(squared(called(whole, part), wanted) / MICROBATCHES)
        losses[-1].backward()  # type: ignore[no-untyped-call]
    result = Pipeline(stages, CUTS[name].program(stages), loss=squared).step(batch, target)
    torch.testing.assert_close(result.loss, torch.stack(losses).sum().detach())
    found = dict(one for stage in stages for one in stage.named_parameters())
    assert found.keys() == dict(whole.named_parameters()).keys()
    for key, weight in whole.named_parameters():
        torch.testing.assert_close(found[key].grad, weight.grad, msg=partial("{}: {}".format, key))
    kept = dict(one for stage in stages for one in stage.state_dict().items())
    assert kept.keys() == whole.state_dict().keys()
    for key, value in whole.state_dict().items():
        torch.testing.assert_close(kept[key], value)


def differences_by_cut(names: list[str], transport: Any = "auto") -> dict[str, list[str]]:
    """What differs from the reference, in training, where models draw."""
    found = {}
    for name in names:
        cut = CUTS[name]._replace(is_evaluating=False)
        _, batch, stages = cut.made()
        data = [(batch, torch.linspace(0, step, 4)) for step in (1, 2)]
        settings: dict[str, Any] = {"loss": squared, "clip": 0.5, "transport": transport}
        found[name] = differences(stages, cut.program(stages), data, **settings)
    return found


def test_training_is_exact() -> None:
    assert not any(differences_by_cut(["inception", "multimodal", "words", "decides"]).values())


def test_on_ranks() -> None:
    names = ["towers by names", "towers as a chain"]
    wanted: dict[str, list[str]] = {name: [] for name in names}
    assert over_transports(3, differences_by_cut, names) == [[wanted] * 3] * 2


def test_branches_run_at_the_same_time() -> None:
    """On as many devices as stages, a step takes as long as the longest path, not as all stages."""
    _, _, stages = CUTS["inception"].made()
    assert stages.graph is not None
    assert stages.graph.edges == Graph.inception().edges
    program = CUTS["inception"].program(stages)
    chain = REGISTRY["1f1b"].program(Shape(devices=6, microbatches=MICROBATCHES))
    assert simulate(program).makespan < simulate(chain).makespan


def test_what_is_drawn_does_not_depend_on_the_cut() -> None:
    """Functional dropout belongs to no module, and is keyed as if it did."""
    losses = []
    for options in ({"stages": 2}, {"stages": 4}, {"cuts": ["layers.1", "layers.2", "layers.3"]}):
        cut = Cut("words", options)
        _, batch, stages = cut.made()
        pipeline = Pipeline(stages, cut.program(stages), loss=squared, seed=5)
        losses.append(pipeline.step(batch, torch.zeros(4)).loss)
        undropped = pipeline.evaluate(batch, torch.zeros(4)).loss
        assert not torch.equal(losses[-1], undropped)
    assert torch.equal(losses[0], losses[1])
    assert torch.equal(losses[0], losses[2])


@pytest.mark.parametrize("name", ["words", "decides"])
def test_evaluation_is_that_of_the_whole_model(name: str) -> None:
    """Both modes are traced: dropout and running statistics are not fixed to that of the split."""
    cut = CUTS[name]._replace(is_evaluating=False)
    model, batch, stages = cut.made()
    found = Pipeline(stages, cut.program(stages), loss=squared).evaluate(batch, torch.zeros(4))
    with torch.no_grad():
        parts = [called(model.eval(), part) for part in microbatches(batch)]
    wanted = torch.stack([squared(part, torch.zeros(2)) for part in parts]).mean()
    torch.testing.assert_close(found.loss, wanted)


class Noise(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return value + 0.1 * torch.rand_like(value)


def test_a_module_that_stands_in_two_stages_has_both_names_and_its_mode() -> None:
    shared, still = Noise(), nn.Dropout(0.5).eval()
    model = nn.Sequential(shared, still, nn.Linear(WIDTH, WIDTH), still, shared)
    stages = split(model, example=torch.randn(8, WIDTH), cuts=["3"])
    assert [[*dict(one.named_modules(remove_duplicate=False))] for one in stages] == [
        ["", "0", "1", "2"],
        ["", "3", "4"],
    ]
    assert not still.training
    assert differences(stages, one_f_one_b(devices=2, microbatches=4), batches(11, 2)) == []
