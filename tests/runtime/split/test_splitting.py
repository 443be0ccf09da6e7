"""How any model is split: where it is cut, what is refused, and that nothing of it is disturbed."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.runtime.split.whole_models import MODELS, Multimodal, ResNet, TwoTowers, Words
from weft.errors import InputError
from weft.runtime import Stages, split
from weft.runtime.split import compared
from weft.runtime.split.balance import SLACK, starts_of
from weft.runtime.split.compare import routed


def names_of(stages: Stages) -> list[list[str]]:
    """The modules with weights that each stage has, at the top of the model."""
    found = []
    for stage in stages:
        tops = [name.partition(".")[0] for name, _ in stage.named_parameters()]
        found.append([*dict.fromkeys(tops)])
    return found


def made(name: str, **options: Any) -> Stages:
    model, batch = MODELS[name].made()
    return split(model, example=batch, **options)


# where it is cut


def test_named_modules_begin_stages() -> None:
    stages = made("resnet", cuts=["layer2", "layer3.1"])
    assert names_of(stages) == [["conv1", "bn1", "layer1"], ["layer2", "layer3"], ["layer3", "fc"]]
    assert dict(stages[1].named_modules()).keys() >= {"layer3.0"}
    assert "layer3.1" in dict(stages[2].named_modules())


def test_modules_stay_the_users_own() -> None:
    """Between cuts they are whole, with their modes and hooks."""
    torch.manual_seed(0)
    model = ResNet()
    model.get_submodule("layer1.0.bn1").eval()
    calls: list[object] = []
    model.layer2.register_forward_hook(lambda *given: calls.append(given))
    stages = split(model, example=torch.randn(4, 3, 8, 8), cuts=["layer2", "layer3.1"])
    assert stages[1].get_submodule("layer2") is model.layer2
    assert stages[0].get_submodule("layer1") is model.layer1
    assert not stages[0].get_submodule("layer1.0.bn1").training
    assert not calls
    stages[1](relu=torch.randn(4, 4, 8, 8), layer1=torch.randn(4, 4, 8, 8))
    assert len(calls) == 1


def test_a_value_travels_directly_to_each_of_its_readers() -> None:
    stages = made("words", cuts=["layers.1", "layers.2", "layers.3"])
    assert stages.graph is not None
    readers = [edge for edge, names in stages.carries.items() if names and "mul_1" in names]
    assert readers == [(0, 1), (0, 2), (0, 3)]
    assert stages.graph.fixed == frozenset()


def test_what_has_no_gradient_comes_along_a_fixed_edge() -> None:
    stages = made("multimodal", cuts=["text", "fusion", "head"])
    assert stages.graph is not None
    assert stages.carries[0, 2] == ("transpose", "eq")
    stages = made("multimodal", stages=4, branches=True)
    assert stages.graph is not None
    assert [stages.carries[edge] for edge in stages.graph.fixed] == [("mask",)]


@given(
    st.lists(st.integers(0, 9), min_size=3, max_size=9),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_the_largest_part_is_as_small_as_can_be(
    weights: list[int], parts: int, random: Any
) -> None:
    crossing = [float(random.randint(0, 3)) for _ in weights]
    crossing[-1] = float("inf")
    starts = starts_of(weights, crossing, parts)
    places = range(1, len(weights) - 1)
    ways = [[0, *cut] for cut in combinations(places, parts - 1)] if parts <= len(weights) else []
    if not ways:
        assert starts is None
        return
    assert starts in ways
    assert largest(weights, starts) <= SLACK * min(largest(weights, way) for way in ways)


def largest(weights: list[int], starts: list[int]) -> float:
    """Calls count alike where none has a weight."""
    counted = weights if any(weights) else [1] * len(weights)
    ends = [*starts[1:], len(weights)]
    return max(sum(counted[a:b]) for a, b in zip(starts, ends, strict=True))


def test_a_shorter_way_around_a_block_is_no_branch() -> None:
    with pytest.raises(InputError, match="ResNet has no two branches"):
        made("resnet", stages=4, branches=True)


def test_a_head_without_weights_needs_no_stage() -> None:
    class Dot(TwoTowers):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return (self.left(a) * self.right(b)).sum(-1)  # type: ignore[no-any-return]

    example = MODELS["towers"].example()
    stages = split(Dot(), example=example, stages=2, branches=True)
    assert stages.graph is not None
    assert stages.graph.edges == ((0, 1),)
    assert [names[0] for names in names_of(stages)] == ["left", "right"]


class Checkpointed(nn.Module):
    """Checkpoints each of its blocks, inside of which more than one module is called."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Rerun() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Rerun(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inside, x, use_reentrant=False)  # type: ignore[no-any-return]


def test_a_module_that_checkpoints_stays_whole() -> None:
    model = Checkpointed()
    stages = split(model, example=torch.randn(4, 4), stages=2)
    assert [
        name for stage in stages for name, one in stage.named_modules() if type(one) is Rerun
    ] == [f"blocks.{index}" for index in range(4)]


# a model is left as it was


@pytest.mark.parametrize("name", ["resnet", "decides"])
def test_nothing_of_the_model_changes(name: str) -> None:
    model, batch = MODELS[name].made()
    result = model(batch)
    (result["out"] if name == "decides" else result).sum().backward()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    grads = [
        torch.zeros(()) if one.grad is None else one.grad.clone() for one in model.parameters()
    ]
    attributes, drawn = {*vars(model)}, torch.get_rng_state()
    split(model, example=batch, stages=3)
    assert torch.equal(drawn, torch.get_rng_state())
    assert {*vars(model)} == attributes
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    for weight, gradient in zip(model.parameters(), grads, strict=True):
        assert weight.grad is not None
        assert torch.equal(weight.grad, gradient)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("of_example", ["meta", "cpu"])
def test_on_the_meta_device_shapes_are_compared(of_example: str) -> None:
    with torch.device("meta"):
        model, _ = MODELS["towers"].made()
    with torch.device(of_example):
        _, batch = MODELS["towers"].made()
    stages = split(model, example=batch, stages=3)
    assert stages.checked == "by shape"
    assert all(weight.is_meta for stage in stages for weight in stage.parameters())


# what is compared


class Offset(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1e-3


class Detached(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).detach()


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Offset, r"in training: output\['logits'\] differs by"),
        (Detached, r"the gradient of scale in stage 0 differs by"),
    ],
)
def test_stages_that_compute_something_else_are_refused(kind: type, why: str) -> None:
    model, batch = MODELS["words"].made()
    stages = copy.deepcopy(split(model, example=batch, cuts=["layers.1", "layers.3"]))
    stages[1].get_submodule("layers.2").__class__ = kind
    with pytest.raises(InputError, match=why):
        compared(model, stages, batch)


class Hidden(nn.Module):
    """Takes another way where it sees that it is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Tensor:
        out = self.one(x)
        if not isinstance(x, Tensor):  # so that the graph has less than the model computes
            return self.two(out)  # type: ignore[no-any-return]
        return self.two(out.tanh())  # type: ignore[no-any-return]


def test_what_the_modules_do_not_show_the_operators_do() -> None:
    torch.manual_seed(0)
    with pytest.raises(InputError, match="by modules, the stages do not compute what the model"):
        split(Hidden(), example=torch.randn(4, 4), stages=2, trace="modules")
    stages = split(Hidden(), example=torch.randn(4, 4), stages=2)
    assert stages.checked == "by value"


class Summing(nn.Module):
    """Sums in place into a tensor that its forward makes."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out, total = self.one(x), torch.zeros(4)
        total += out.detach().mean(0)
        return self.two(out - total)  # type: ignore[no-any-return]


class Counted(Summing):
    """Notices a change that no name of a call shows."""

    def forward(self, x: Tensor) -> Tensor:
        out, total = self.one(x), torch.zeros(4)
        torch.add(total, out.detach().mean(0), out=total)
        return self.two(out - total)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [Summing, Counted])
def test_what_a_forward_makes_is_made_in_each(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = kind(), torch.randn(4, 4)
    stages = split(model, example=x, stages=2)
    for _ in range(3):
        torch.testing.assert_close(routed(stages, x), model(x))
    with pytest.raises(InputError, match="changes a tensor in place that its forward makes"):
        split(model, example=x, stages=2, trace="modules")


def test_convolutions_are_exported() -> None:
    """torch.export makes the tuples of their sizes anew, and that changes nothing."""
    model, batch = MODELS["unet"].made()
    assert split(model, example=batch, stages=2, trace="export").checked == "by value"


class Looked(nn.Module):
    """Weights of an embedding learn by sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.line = nn.Embedding(8, 4, sparse=True), nn.Linear(4, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.line(self.table(ids))  # type: ignore[no-any-return]


def test_sparse_gradients_are_compared() -> None:
    torch.manual_seed(0)
    assert split(Looked(), example=torch.arange(4), stages=2).checked == "by value"


# what is refused


class Modal(nn.Module):
    """Does more in training than in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.two(self.one(x))
        return out + torch.tanh(out) if self.training else out


class Counting(Modal):
    """Keeps a number that no stage could keep."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.two(self.one(x)) * self.calls  # type: ignore[no-any-return]


def _hooked() -> nn.Module:
    model = TwoTowers()
    model.register_forward_hook(lambda *given: None)
    return model


REFUSED: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], str]] = {
    "an unknown name": (ResNet, {"cuts": ["layer9"]}, "has no module layer9; it has conv1, bn1"),
    "inside a whole module": (
        Multimodal,
        {"cuts": ["text.linear1"]},
        "lies in text, which is kept",
    ),
    "the first call": (ResNet, {"cuts": ["conv1"]}, "or one at the first"),
    "too many stages": (TwoTowers, {"stages": 40}, "cannot be cut into 40 stages"),
    "too few for branches": (TwoTowers, {"stages": 2, "branches": True}, "at least 3 stages"),
    "another balance": (
        TwoTowers,
        {"stages": 2, "balance": "luck"},
        "by parameters, flops or time",
    ),
    "another trace": (TwoTowers, {"stages": 2, "trace": "luck"}, "by modules or export"),
    "cuts and stages": (ResNet, {"cuts": ["layer2"], "stages": 3}, "make 2 stages, and stages=3"),
    "neither": (ResNet, {}, "give the number of stages, or cuts"),
    "hooks of the whole": (_hooked, {"stages": 2}, "has hooks, which no stage of it can run"),
    "another example": (
        Words,
        {"stages": 2, "example": (1, 2)},
        "does not fit the forward of Words",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    make, options, why = REFUSED[name]
    kind = {ResNet: "resnet", Multimodal: "multimodal", Words: "words"}.get(type(make()), "towers")
    with pytest.raises(InputError, match=why):
        split(make(), **{"example": MODELS[kind].example(), **options})


def test_a_forward_that_changes_attributes_is_refused() -> None:
    model = Counting()
    with pytest.raises(InputError, match="changes attributes of its own, which no operator does"):
        split(model, example=torch.randn(4, 4), stages=2)
    assert model.calls == 0


class Lucky(Modal):
    """Leaves a layer out by chance, which a graph of it would do always or never."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.one(x)
        return self.two(out) if self.draw() < 2 else out


@pytest.mark.parametrize("trace", ["modules", "export", "auto"])
@pytest.mark.parametrize(
    ("draw", "whose"), [(random.random, "random"), (np.random.rand, r"numpy\.random")]
)
def test_a_forward_that_draws_elsewhere_than_from_torch_is_refused(
    draw: Callable[[], float], whose: str, trace: str
) -> None:
    with pytest.raises(InputError, match=f"draws from {whose}"):
        split(Lucky(draw), example=torch.randn(4, 4), stages=2, trace=trace)


class Optional(Modal):
    """Has arguments that need not be given."""

    def forward(self, x: Tensor, *, scale: float = 2.0, **more: float) -> Tensor:
        out: Tensor = self.two(self.one(x)) * scale
        return out + more["shift"] if more else out


def test_an_argument_that_is_left_out_is_its_default() -> None:
    x = torch.randn(4, 4)
    stages = split(Optional(), example={"x": x, "scale": 3.0}, stages=2)
    with pytest.raises(InputError, match=r"scale was 3\.0 in the example"):
        stages[0](x=x)
    stages = split(Optional(), example={"x": x, "scale": 2.0}, stages=2)
    stages[0](x=x)
    stages = split(Optional(), example={"x": x, "shift": 1.0}, stages=2)
    with pytest.raises(InputError, match=r"shift was 1\.0 in the example"):
        stages[0](x=x)


def test_what_the_example_fixes_is_refused_where_it_differs() -> None:
    model, batch = MODELS["words"].made()
    stages = split(model, example=batch, stages=2)
    with pytest.raises(InputError, match="depth was 4 in the example"):
        stages[0](**batch, depth=3)
    stages = split(Modal(), example=torch.randn(4, 4), stages=2)
    stages[0](x=torch.randn(3, 4))
    with pytest.raises(InputError, match="does other calls in evaluation than in training"):
        stages[0].eval()(x=torch.randn(3, 4))


class Shaped(nn.Module):
    """Decides by its rows, and fixes them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = 4 if len(x) == 4 else 2
        return self.two(self.one(x).view(rows, -1))  # type: ignore[no-any-return]


def test_rows_that_export_has_fixed() -> None:
    stages = split(Shaped(), example=torch.randn(4, 4), stages=2)
    with pytest.raises(InputError, match=r"x has 2 rows; torch\.export has fixed them to the 4"):
        stages[0](x=torch.randn(2, 4))


class Tall(Shaped):
    """Decides by its rows."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.two(self.one(x))
        return out if x.shape[0] > 2 else -out


def test_rows_that_take_another_way_are_noticed() -> None:
    stages = split(Tall(), example=torch.randn(4, 4), stages=2)
    stages[0](x=torch.randn(3, 4))
    with pytest.raises(AssertionError, match="Guard failed"):
        stages[0](x=torch.randn(2, 4))


def test_the_guide_to_any_module_runs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    section = page[page.index("## Any module") : page.index("## Experts")]
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        exec(compile(code, "guide", "exec"), names)  # noqa: S102  our own document
    assert names["stages"].checked == "by value"
    assert names["pipeline"].program.microbatches == 4
