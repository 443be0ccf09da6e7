"""What is moved to the host and back is the same, bit for bit, and away in between."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.runtime import models
from tests.runtime.habits import layers
from tests.runtime.habits.size import WIDTH
from weft.errors import WeftError
from weft.runtime.stage.keyed import KeyedModules
from weft.runtime.stage.offload import HeldTensors
from weft.runtime.stage.randomness import Draw
from weft.runtime.stage.role import Role
from weft.runtime.stage.stage import Stage
from weft.runtime.stage.storage.blocks import HostBlocks
from weft.runtime.stage.storage.kept import SavedTensor
from weft.runtime.stage.values import Value
from weft.runtime.weights.versions import Stash

MICROBATCHES = range(3)


class Checkpointed(nn.Module):
    """Runs a part of it again in its backward."""

    def __init__(self, *, is_reentrant: bool) -> None:
        super().__init__()
        self.inner, self.line = layers.Residual(), nn.Linear(WIDTH, WIDTH)
        self.drop, self._is_reentrant = nn.Dropout(0.3), is_reentrant

    def forward(self, value: Tensor) -> Tensor:
        return self.line(checkpoint(self._part, value, use_reentrant=self._is_reentrant))

    def _part(self, value: Tensor) -> Tensor:
        return self.drop(self.inner(value))


class Normed(nn.Module):
    """Changes buffers, and saves some of what it computes as it is after a change in place."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(WIDTH), nn.Dropout(0.5, inplace=True)

    def forward(self, value: Tensor) -> Tensor:
        out = self.norm(value.transpose(1, 2)).transpose(1, 2)
        return self.drop(functional.relu_(out) * 2)


class Rows(nn.Module):
    """Saves two views of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        left, right = self.line(value).split(WIDTH, -1)
        return left * right * right[:, :1]


class Gradient(layers.Lined):
    """Differentiates inside its forward, and through that."""

    def forward(self, value: Tensor) -> Tensor:
        inner = value if value.requires_grad else value.detach().requires_grad_()
        energy = torch.tanh(self.line(inner)).pow(2).sum()
        (force,) = torch.autograd.grad(energy, inner, create_graph=True)
        return force


class Remembering(layers.Lined):
    """Adds what it was given, and what it gave, for the microbatch before."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Tensor | None = None
        self.gave: Tensor | None = None

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = torch.tanh(self.line(value))
        if self.seen is not None and self.gave is not None:
            out = out + self.seen.detach() + self.gave.detach()
        self.seen, self.gave = value, out
        return out


class Tanh(torch.autograd.Function):
    """Saves its input and its output."""

    @staticmethod
    def forward(context: torch.autograd.function.FunctionCtx, value: Tensor) -> Tensor:
        out: Tensor = value.tanh()
        context.save_for_backward(value, out)
        return out

    @staticmethod
    def backward(context: object, gradient: Tensor) -> Tensor:
        _, out = context.saved_tensors  # type: ignore[attr-defined]
        return gradient * (1 - out * out)


class OwnFunction(layers.Lined):
    def forward(self, value: Tensor) -> Tensor:
        return Tanh.apply(self.line(value))  # type: ignore[no-untyped-call]


MODULES: dict[str, Callable[[], nn.Module]] = {
    **{
        kind.__name__: kind
        for kind in (
            layers.Residual,
            layers.UsedTwice,
            layers.WeightRead,
            layers.OwnLinear,
            layers.RawWeights,
            layers.Batched,
            layers.Vectors,
            layers.Convolved,
            layers.Recurrent,
            layers.Bucketed,
            layers.Overwritten,
            layers.Chunked,
            layers.Strided,
            layers.Expanded,
            layers.Rotated,
            layers.Experts,
            layers.Sometimes,
            layers.Never,
            layers.Filtered,
            Normed,
            Rows,
            Gradient,
            Remembering,
            OwnFunction,
        )
    },
    "attention with dropout": lambda: layers.Attention(0.3),
    "checkpoint": lambda: Checkpointed(is_reentrant=False),
    "reentrant checkpoint": lambda: Checkpointed(is_reentrant=True),
    "layers": lambda: nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Dropout(0.1), nn.Softmax(-1)
    ),
}
WAYS: dict[str, dict[str, Any]] = {
    "whole": {},
    "divided": {"is_divided": True},
    "recomputed": {"is_recomputed": True},
}
each_module = pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
each_way = pytest.mark.parametrize("way", WAYS)


def made(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def given(count: int = len(MICROBATCHES)) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 3, WIDTH, generator=generator) for _ in range(count)]


def gradient_of(value: Tensor) -> Tensor:
    return torch.linspace(-1, 1, value.numel()).view(value.shape).to(value.dtype)


def state_of(module: nn.Module) -> list[Tensor | None]:
    return [*(weight.grad for weight in module.parameters()), *module.buffers()]


def plain(module: nn.Module) -> list[Tensor | None]:
    """What autograd makes of it: outputs, gradients of inputs and weights, buffers."""
    draw, found = Draw(), list[Tensor | None]()
    KeyedModules([("0", module)], draw)
    runs = []
    for number, data in enumerate(given()):
        leaf = data.clone().requires_grad_()
        with draw.forward(number) as drawn:
            out = module(leaf)
        runs.append((leaf, out, drawn))
        found.append(out.detach().contiguous())
    for leaf, out, drawn in runs:
        with draw.backward(drawn):
            out.backward(gradient_of(out))
        found.append(leaf.grad)
    return [*found, *state_of(module)]


def staged(module: nn.Module, way: str) -> list[Tensor | None]:
    """What a stage makes of it that moves all to the host, from another thread, and back."""
    stage = Stage(module, Draw(), Role(index=0, is_split=way == "divided"))
    found = list[Tensor | None]()
    with ThreadPoolExecutor(1) as thread:
        outputs = []
        for number, data in enumerate(given()):
            value = Value.of(data, "")
            (out,) = stage.forward(number, [value], is_offloaded=True, **WAYS[way]).leaves
            thread.submit(stage.offload, number).result()
            outputs.append(out)
        for number, out in enumerate(outputs):
            thread.submit(stage.onload, number).result()
            found += backward(stage, number, out, way)
    assert stage.offloaded_bytes > 0
    assert stage.in_flight == 0
    return [*outputs, *found, *state_of(module)]


def backward(stage: Stage, number: int, out: Tensor, way: str) -> Sequence[Tensor | None]:
    if way == "recomputed":
        stage.recompute(number)
    if way != "divided":
        return stage.backward(number, [gradient_of(out)])
    passed = stage.input_grad(number, [gradient_of(out)])
    stage.weight_grad(number)
    return passed


def assert_same(mine: Sequence[Tensor | None], theirs: Sequence[Tensor | None]) -> None:
    for one, other in zip(mine, theirs, strict=True):
        assert (one is None) == (other is None)
        assert one is None or models.is_same(one, other)


@each_way
@each_module
def test_offload_changes_nothing(make: Callable[[], nn.Module], way: str) -> None:
    module = made(make)
    if way == "recomputed" and make is Remembering:  # keeps state that is no buffer
        with pytest.raises(WeftError, match="computes something else"):
            staged(module, way)
        return
    assert_same(staged(copy.deepcopy(module), way), plain(module))


@each_way
def test_nor_does_it_under_autocast(way: str) -> None:
    module = made(layers.Residual)
    with torch.autocast("cpu", torch.bfloat16):
        kept = Stage(copy.deepcopy(module), Draw(), Role(index=0, is_split=way == "divided"))
        outputs = []
        for number, data in enumerate(given()):
            outputs.append(kept.forward(number, [Value.of(data, "")], **WAYS[way]).leaves[0])
        found = [grad for n, out in enumerate(outputs) for grad in backward(kept, n, out, way)]
        assert_same(staged(module, way), [*outputs, *found, *state_of(kept.module)])


def test_weights_with_versions_stay_where_they_are() -> None:
    """An update between forward and backward makes another version; this one is used again."""
    found = []
    for is_offloaded in (False, True):
        module = made(layers.Residual)
        stash = Stash(module.named_parameters(), 2)
        stage = Stage(module, Draw(), Role(index=0, stashes=[stash]))
        value = Value.of(given()[0], "")
        (out,) = stage.forward(0, [value], versions=(0,), is_offloaded=is_offloaded).leaves
        if is_offloaded:
            stage.offload(0)
        stash.update(partial(_halve, [*module.parameters()]))
        stage.onload(0)
        found.append([out, *stage.backward(0, [gradient_of(out)]), *state_of(module)])
    assert_same(*found)


def _halve(weights: Sequence[Tensor]) -> None:
    for weight in weights:
        weight.mul_(0.5)


def test_a_loss_is_offloaded_with_its_stage() -> None:
    def loss(output: Tensor, microbatch: int) -> Tensor:
        return functional.mse_loss(output.tanh(), torch.full_like(output, microbatch)) / 3

    found = []
    for is_offloaded in (False, True):
        stage = Stage(made(layers.Residual), Draw(), Role(index=0, loss=loss))
        (out,) = stage.forward(2, [Value.of(given()[0], "")], is_offloaded=is_offloaded).leaves
        if is_offloaded:
            stage.offload(2)
            stage.onload(2)
        found.append([out, *stage.backward(2, [None]), *state_of(stage.module)])
    assert_same(*found)


# memory


class Watched(layers.Lined):
    """Lets others see whether what it computes is still there."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: list[Any] = []
        self.computed: list[weakref.ref[Tensor]] = []

    def forward(self, value: Tensor) -> Tensor:
        inner = self.line(value)
        saved = torch.sigmoid(inner), inner.exp()
        for one in saved:
            self.computed.append(weakref.ref(one))
            self.storages.append(one.untyped_storage()._weak_ref())
        return saved[0] * saved[1]

    @property
    def alive(self) -> int:
        gc.collect()
        expired = [torch.UntypedStorage._expired(storage) for storage in self.storages]
        assert all(one() is None for one in self.computed)
        return sum(not one for one in expired)


def test_what_is_offloaded_takes_no_memory() -> None:
    module = Watched()
    stage = Stage(module, Draw(), Role(index=0))
    out = stage.forward(0, [Value.of(given()[0], "")], is_offloaded=True)
    gradient = gradient_of(out.leaves[0])
    del out  # as once it is sent
    assert module.alive == 2
    stage.offload(0)
    assert module.alive == 0
    stage.onload(0)
    stage.backward(0, [gradient])


def test_nor_do_its_inputs() -> None:
    for way in (WAYS["whole"], WAYS["recomputed"]):
        stage = Stage(made(layers.Residual), Draw(), Role(index=0))
        data = given()[0]
        storage = data.untyped_storage()._weak_ref()
        stage.forward(0, [Value.of(data, "")], is_offloaded=True, **way)
        del data
        assert not torch.UntypedStorage._expired(storage)
        stage.offload(0)
        assert torch.UntypedStorage._expired(storage)


def test_views_of_one_storage_are_moved_once() -> None:
    stage = Stage(made(Rows), Draw(), Role(index=0, is_first=True))
    data = given()[0]
    stage.forward(0, [Value.of(data, "")], is_offloaded=True)
    stage.offload(0)
    both = 2 * data.nbytes  # what the layer gives, which both halves are views of
    product = data.nbytes  # of the halves
    assert stage.offloaded_bytes == data.nbytes + both + product


def test_weights_are_not_moved() -> None:
    module = nn.Linear(WIDTH, WIDTH)
    stage = Stage(module, Draw(), Role(index=0))
    place = module.weight.data_ptr()
    stage.forward(0, [Value.of(given()[0], "")], is_offloaded=True)
    stage.offload(0)
    assert module.weight.data_ptr() == place
    assert stage.offloaded_bytes == given()[0].nbytes


# refusals


@contextmanager
def offloaded(module: nn.Module, **role: bool) -> Iterator[tuple[Stage, Tensor]]:
    stage = Stage(module, Draw(), Role(index=3, **role))  # type: ignore[arg-type]
    (out,) = stage.forward(5, [Value.of(given()[0], "")], is_offloaded=True).leaves
    stage.offload(5)
    yield stage, gradient_of(out)


def test_what_is_still_on_the_host_is_not_computed_with() -> None:
    with offloaded(layers.Residual(), is_split=True) as (stage, gradient):
        for call in (
            lambda: stage.backward(5, [gradient]),
            lambda: stage.input_grad(5, [gradient]),
            lambda: stage.offload(5),
        ):
            with pytest.raises(WeftError, match=r"stage 3, microbatch 5 .* still on the host"):
                call()
        stage.onload(5)
        stage.backward(5, [gradient])


class Reviving(layers.Lined):
    """Differentiates through what it computed for the microbatch before."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Tensor | None = None

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.line(value).exp()
        if self.before is not None:
            torch.autograd.backward(self.before.sum())
        self.before = out
        return out


def test_nor_by_anybody_else() -> None:
    with (
        offloaded(Reviving()) as (stage, _),
        pytest.raises(WeftError, match="still on the host"),
    ):
        stage.forward(6, [Value.of(given()[0], "")])


class Shared(layers.Lined):
    """Saves a tensor that it keeps, and may change it in the next forward."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.is_changing = torch.ones(WIDTH), False

    def forward(self, value: Tensor) -> Tensor:
        if self.is_changing:
            self.scale.add_(1)
        return self.line(value) * self.scale


@pytest.mark.parametrize("when", ["before", "while away", "after"])
def test_a_change_in_place_is_refused_as_torch_does(when: str) -> None:
    module = Shared()
    stage = Stage(module, Draw(), Role(index=0))
    value = Value.of(given()[0], "")
    (out,) = stage.forward(0, [value], is_offloaded=True).leaves

    def change(now: str) -> None:
        module.is_changing = True
        with nullcontext() if now == when else pytest.raises(AssertionError):
            assert now == when
            stage.forward(1, [value])

    change("before")
    stage.offload(0)
    change("while away")
    stage.onload(0)
    change("after")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        stage.backward(0, [gradient_of(out)])


def test_where_nothing_is_stashed_a_backward_finds_the_newest_weights_all_the_same() -> None:
    found = []
    for is_offloaded in (False, True):
        module = made(layers.Residual)
        stash = Stash(module.named_parameters(), 1)
        stage = Stage(module, Draw(), Role(index=0, stashes=[stash], is_stashing=False))
        value = Value.of(given()[0], "")
        (out,) = stage.forward(0, [value], versions=(0,), is_offloaded=is_offloaded).leaves
        if is_offloaded:
            stage.offload(0)
        stash.update(partial(_halve, [*module.parameters()]))
        stage.onload(0)
        found.append([out, *stage.backward(0, [gradient_of(out)]), *state_of(module)])
        assert (stage.offloaded_bytes > 0) == is_offloaded
    assert_same(*found)


def test_what_was_not_to_be_offloaded_is_not() -> None:
    stage = Stage(layers.Residual(), Draw(), Role(index=0))
    stage.forward(0, [Value.of(given()[0], "")])
    with pytest.raises(WeftError, match="microbatch 0 cannot be offloaded"):
        stage.offload(0)


def test_what_is_on_the_host_already_stays_there() -> None:
    """As the counts of tokens by which a stage on a GPU has sent them to experts."""
    device, blocks = torch.device("meta"), HostBlocks()
    far, near = torch.ones(3, device=device), torch.ones(3)
    held = HeldTensors("stage 0", [far, near], [], blocks, device)
    stored = SavedTensor(near, "stage 0")
    held.hold(stored)
    assert not stored.is_held
    assert [id(one) for one in held._held()] == [id(far)]
