"""Segments that run as stages of their own make up the whole stage, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.runtime.models import WIDTH, KnownSegments, is_same, squared
from weft.errors import InputError
from weft.runtime.split import split
from weft.runtime.stage.calling import Slice
from weft.runtime.stage.locks import OPEN
from weft.runtime.stage.randomness import Draw
from weft.runtime.stage.role import Role
from weft.runtime.stage.segments import segments_of
from weft.runtime.stage.stage import Stage
from weft.runtime.stage.values import Value
from weft.runtime.weights.versions import Stash

EXPERTS = 3


class Attention(nn.Module):
    """Draws a mask by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        return value + functional.dropout(self.line(value), 0.2)


class Dispatch(nn.Module):
    """What goes to each expert, beside the value itself."""

    def __init__(self) -> None:
        super().__init__()
        self.choice, self.drop = nn.Linear(WIDTH, EXPERTS), nn.Dropout(0.2)

    def forward(self, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        share = self.choice(value).softmax(-1)
        return value, self.drop(share), share.argmax(-1)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lines = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, value: Tensor, share: Tensor, best: Tensor) -> dict[str, Tensor]:
        out = torch.stack([line(value) for line in self.lines], -1)
        out[..., 0].mul_(2)
        return {"value": value, "out": out, "share": share, "best": best}


class Combine(nn.Module):
    """Changes what it is given in place, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(EXPERTS))
        self.seen: Tensor

    def forward(self, given: dict[str, Tensor]) -> Tensor:
        self.seen += functional.one_hot(given["best"], EXPERTS).sum(0)
        scaled = given["out"].mul_(given["share"].unsqueeze(-2))
        return given["value"] + scaled.sum(-1)


PARTS: Sequence[Callable[[], nn.Module]] = (Attention, Dispatch, Experts, Combine)


class Mixture(nn.Module):
    """Layers of experts, which say what their segments are."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList(make() for make in PARTS) for _ in range(layers))

    @property
    def segments(self) -> list[nn.Module]:
        return [part for layer in self.layers for part in layer.children()]

    def forward(self, value: Any) -> Any:
        for segment in self.segments:
            value = segment(*value) if isinstance(value, tuple) else segment(value)
        return value


def sequence(layers: int) -> nn.Sequential:
    """The same habits, one value each."""
    return nn.Sequential(
        *(
            part
            for _ in range(layers)
            for part in (
                Attention(),
                nn.Sequential(nn.Dropout(0.5), nn.ReLU(inplace=True)),
                nn.Linear(WIDTH, WIDTH),
                nn.Sequential(nn.LayerNorm(WIDTH), nn.Dropout(0.1)),
            )
        )
    )


MODULES: dict[str, Callable[[], nn.Module]] = {
    "mixture": lambda: Mixture(2),
    "sequence": lambda: sequence(2),
    "slice": lambda: split(nn.Sequential(nn.ReLU(), *sequence(2)), stages=2, layers=(1, 8))[1],
    "known": lambda: KnownSegments([[0.0] * 4] * 2),
}
each_module = pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
INDEX = 1  # of the stage


def loss(output: Tensor, microbatch: int) -> Tensor:
    return squared(functional.dropout(output, 0.1), torch.full_like(output, microbatch)) / 2


def given() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(5, WIDTH, generator=generator) for _ in range(3)]


class Chain:
    """Stages by hand, each of which gets what the one before returns."""

    def __init__(self, modules: Sequence[nn.Module], *, is_last: bool, is_split: bool) -> None:
        draw = Draw()
        self._is_last, self._is_split = is_last, is_split
        self.stages = []
        for place, module in enumerate(modules):
            is_end = is_last and place == len(modules) - 1
            role = Role(index=INDEX, is_split=is_split, loss=loss if is_end else None)
            self.stages.append(Stage(module, draw, role))
            self.stages[-1].begin(OPEN, None)

    def forward(self, microbatch: int, data: Tensor) -> Value:
        value = Value.of(data, "")
        for stage in self.stages:
            value = stage.forward(microbatch, [value], is_divided=self._is_split)
        return value

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        for stage in reversed(self.stages):
            if self._is_split:
                gradients = stage.input_grad(microbatch, gradients)
            else:
                gradients = stage.backward(microbatch, gradients)
        return [*gradients]

    def weight_grad(self, microbatch: int) -> None:
        for stage in self.stages if self._is_split else ():
            stage.weight_grad(microbatch)


def run(chain: Chain, module: nn.Module) -> list[Tensor | None]:
    """Outputs, gradients of inputs and weights, buffers."""
    outputs = [chain.forward(number, data).leaves[0] for number, data in enumerate(given())]
    found = []
    for number, out in enumerate(outputs):
        found += chain.backward(number, [torch.linspace(0, 1, out.numel()).view_as(out)])
    for number in range(len(outputs)):
        chain.weight_grad(number)
    grads = [weight.grad for weight in module.parameters()]
    return [*outputs, *found, *grads, *module.buffers()]


@each_module
@pytest.mark.parametrize("is_last", [False, True], ids=["inner", "with the loss"])
@pytest.mark.parametrize("is_split", [False, True], ids=["whole", "divided"])
def test_segments_make_up_the_stage(
    make: Callable[[], nn.Module], is_last: bool, is_split: bool
) -> None:
    torch.manual_seed(0)
    whole = make()
    cut = copy.deepcopy(whole)
    segments = segments_of(cut, 2)
    assert len(segments) == 8
    mine = run(Chain(segments, is_last=is_last, is_split=is_split), cut)
    theirs = run(Chain([whole], is_last=is_last, is_split=is_split), whole)
    for one, other in zip(mine, theirs, strict=True):
        assert is_same(one, other)


@each_module
def test_evaluation_in_segments(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    whole = make()
    cut, data = copy.deepcopy(whole), Value.of(given()[0], "")
    value, draw = data, Draw()
    for segment in segments_of(cut, 2):
        value = Stage(segment, draw, Role(index=INDEX)).infer(0, [value])
    expected = Stage(whole, Draw(), Role(index=INDEX)).infer(0, [data])
    assert is_same(value.leaves[0], expected.leaves[0])


@each_module
def test_weights_keep_the_names_of_the_stage(make: Callable[[], nn.Module]) -> None:
    module = make()
    named = [pair for one in segments_of(module, 2) for pair in one.named_parameters()]
    assert {name: id(weight) for name, weight in named} == {
        name: id(weight) for name, weight in module.named_parameters()
    }


def test_segments_compute_with_versions_of_the_stage() -> None:
    torch.manual_seed(0)
    whole = sequence(1)
    cut = copy.deepcopy(whole)
    found = []
    for module, modules in ((whole, [whole]), (cut, segments_of(cut, 1))):
        stash, draw = Stash(module.named_parameters(), 2), Draw()
        role = Role(index=INDEX, stashes=[stash])
        stages = [Stage(one, draw, role) for one in modules]
        value = Value.of(given()[0], "")
        for stage in stages:
            stage.begin(OPEN, None)
            value = stage.forward(0, [value], versions=(0,))
        stash.update(lambda: None)
        gradients: Sequence[Tensor | None] = [torch.ones_like(value.leaves[0])]
        for stage in reversed(stages):
            gradients = stage.backward(0, gradients)
        stash.update(lambda: None)  # nothing is in use any more
        found.append([*value.leaves, *gradients, *(w.grad for w in module.parameters())])
    for one, other in zip(*found, strict=True):
        assert is_same(one, other)


# refusals


def test_what_does_not_show_its_segments_is_refused() -> None:
    for module in (nn.Linear(WIDTH, WIDTH), sequence(2), Slice()):
        with pytest.raises(InputError, match="attribute `segments` that lists 4 of its modules"):
            segments_of(module, 1)
    with pytest.raises(InputError, match="Mixture has 8 segments, not 12"):
        segments_of(Mixture(2), 3)


def test_segments_that_are_no_modules_of_the_stage_are_refused() -> None:
    class Elsewhere(Mixture):
        @property
        def segments(self) -> list[nn.Module]:
            return [nn.Sequential(part) for part in super().segments]

    with pytest.raises(InputError, match="segment 0 of Elsewhere is none of its modules"):
        segments_of(Elsewhere(1), 1)


class Scaled(Mixture):
    """Has a weight that no segment has."""

    def __init__(self) -> None:
        super().__init__(1)
        self.scale = nn.Parameter(torch.ones(WIDTH))


class Counting(Mixture):
    """Has a buffer that no segment has."""

    def __init__(self) -> None:
        super().__init__(1)
        self.register_buffer("count", torch.zeros(()))


class Dropping(Mixture):
    """Has a module that no segment has."""

    def __init__(self) -> None:
        super().__init__(1)
        self.drop = nn.Dropout(0.1)


@pytest.mark.parametrize(
    ("kind", "name"), [(Scaled, "scale"), (Counting, "count"), (Dropping, "drop")]
)
def test_what_no_segment_has_is_refused(kind: Callable[[], nn.Module], name: str) -> None:
    with pytest.raises(InputError, match=f"{name} of {kind.__name__} is in none of its segments"):
        segments_of(kind(), 1)


def test_shared_segments_are_refused() -> None:
    shared = nn.Linear(WIDTH, WIDTH)
    with pytest.raises(InputError, match="segments 0 and 2 share a Linear"):
        segments_of(nn.Sequential(shared, nn.ReLU(), shared, nn.ReLU()), 1)
    tied = nn.Linear(WIDTH, WIDTH)
    tied.weight = shared.weight
    with pytest.raises(InputError, match="segments 1 and 2 share a Parameter"):
        segments_of(nn.Sequential(nn.ReLU(), shared, tied, nn.ReLU()), 1)


def test_hooks_of_the_whole_are_refused() -> None:
    module = sequence(1)
    module.register_forward_hook(lambda *_: None)
    with pytest.raises(InputError, match="hook its segments"):
        segments_of(module, 1)


def test_a_segment_without_weights_computes_where_the_others_do() -> None:
    """As dispatch and combine do on a GPU, whose values must not go through the host."""
    elsewhere = torch.device("meta")
    stage = Stage(nn.ReLU(), Draw(), Role(index=INDEX, device=elsewhere))
    value = Value.of(torch.empty(2, WIDTH, device=elsewhere), "")
    assert stage.infer(0, [value]).leaves[0].device == elsewhere


class Chained(nn.Module):
    """Its segments, one after the other; its kinds do something else besides."""

    def __init__(self, *, is_training: bool = True) -> None:
        super().__init__()
        self.segments = nn.ModuleList([Attention(), Dispatch(), Experts(), Combine()])
        self.train(is_training)

    def forward(self, value: Any) -> Any:
        for segment in self.segments:
            value = segment(*value) if isinstance(value, tuple) else segment(value)
        return value


class Adding(Chained):
    def forward(self, value: Any) -> Any:
        return value + super().forward(value)


class Doubled(Chained):
    def forward(self, value: Any) -> Any:
        return super().forward(2 * value)


class Reversed(Chained):
    def forward(self, value: Any) -> Any:
        for segment in reversed(self.segments):
            value = segment(value)
        return value


class Shortened(Chained):
    def forward(self, value: Any) -> Any:
        for segment in self.segments[:3]:
            value = segment(value)
        return value


class Looking(Chained):
    """Looks into its value, and does nothing with what it sees."""

    def forward(self, value: Any) -> Any:
        rows, _ = value.shape
        assert rows
        return super().forward(value)


@pytest.mark.parametrize("kind", [Adding, Doubled, Reversed, Shortened])
def test_a_layer_that_does_more_than_its_segments_is_refused(kind: type[Chained]) -> None:
    with pytest.raises(InputError, match=f"{kind.__name__} does more in its forward"):
        segments_of(kind(), 1)


@pytest.mark.parametrize("kind", [Chained, Looking])
def test_a_layer_that_only_calls_them_is_not(kind: type[Chained]) -> None:
    seen = list[object]()
    layer = kind()
    layer.segments[0].register_forward_hook(lambda *given: seen.append(given))
    assert len(segments_of(layer, 1)) == len(layer.segments)
    assert seen == [], "nobody notices that it was tried"
