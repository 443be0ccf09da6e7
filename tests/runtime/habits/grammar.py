"""The grammar: which habits there are, and what of them a model may be composed of.

A model is data: a list of layers, each a habit under its name, what it passes on and what it
shares with an earlier one. `built` makes the modules, always with the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tests.runtime.habits import chance, gradients, hooked, layers, memory
from tests.runtime.habits.forms import FORMS, arity
from tests.runtime.habits.short import Short
from tests.runtime.habits.size import WIDTH, WORDS


class Habit(NamedTuple):
    """A way to write a layer.

    is_steep  whether a rounding error may make a large difference, as with a comparison
    is_rare   whether it is drawn less often, as it can only be refused
    is_alone  whether it is shared less often, as its state would not be
    """

    make: Callable[[], nn.Module]
    is_steep: bool = False
    is_rare: bool = False
    is_alone: bool = False


HABITS: dict[str, Habit] = {
    # layers of torch
    "Linear": Habit(lambda: nn.Linear(WIDTH, WIDTH)),
    "LinearWithoutBias": Habit(lambda: nn.Linear(WIDTH, WIDTH, bias=False)),
    "LayerNorm": Habit(lambda: nn.LayerNorm(WIDTH)),
    "ReLU": Habit(nn.ReLU),
    "Tanh": Habit(nn.Tanh),
    "Identity": Habit(nn.Identity),
    "Convolved": Habit(layers.Convolved),
    "Recurrent": Habit(layers.Recurrent),
    "Attention": Habit(layers.Attention),
    # weights
    "Residual": Habit(layers.Residual),
    "UsedTwice": Habit(layers.UsedTwice),
    "WeightRead": Habit(layers.WeightRead),
    "Keyword": Habit(layers.Keyword),
    "CalledForward": Habit(layers.CalledForward),
    "OwnLinear": Habit(layers.OwnLinear),
    "RawWeights": Habit(layers.RawWeights),
    "Batched": Habit(layers.Batched),
    "Clamped": Habit(layers.Clamped),
    "Vectors": Habit(layers.Vectors),
    "Mapped": Habit(layers.Mapped),
    "Hidden": Habit(layers.Hidden, is_rare=True),
    # views, writing in place
    "ReLUInPlace": Habit(partial(nn.ReLU, inplace=True)),
    "DropoutInPlace": Habit(partial(nn.Dropout, 0.3, inplace=True)),
    "Added": Habit(layers.Added),
    "Zeroed": Habit(layers.Zeroed),
    "Overwritten": Habit(layers.Overwritten),
    "Chunked": Habit(layers.Chunked),
    "Strided": Habit(layers.Strided),
    "Expanded": Habit(layers.Expanded),
    "Rotated": Habit(layers.Rotated),
    # data that choose a path
    "Bucketed": Habit(layers.Bucketed, is_steep=True),
    "Experts": Habit(layers.Experts, is_steep=True),
    "Sometimes": Habit(layers.Sometimes, is_steep=True),
    "Filtered": Habit(layers.Filtered, is_steep=True),
    "Never": Habit(layers.Never),
    # chance
    "Dropout": Habit(partial(nn.Dropout, 0.3)),
    "AlphaDropout": Habit(partial(nn.AlphaDropout, 0.3)),
    "RReLU": Habit(nn.RReLU),
    "FunctionalDropout": Habit(chance.FunctionalDropout),
    "AlwaysDropout": Habit(chance.AlwaysDropout),
    "DropsTwice": Habit(chance.DropsTwice),
    "OneDropoutTwice": Habit(chance.OneDropoutTwice),
    "SharedDropout": Habit(chance.SharedDropout),
    "AttentionWithDropout": Habit(partial(layers.Attention, 0.3)),
    "ScaledAttention": Habit(chance.ScaledAttention),
    "Noise": Habit(chance.Noise),
    "NormalNoise": Habit(chance.NormalNoise),
    "DropPath": Habit(chance.DropPath),
    "LayerDrop": Habit(chance.LayerDrop),
    "OwnGenerator": Habit(chance.OwnGenerator),
    "Shuffled": Habit(chance.Shuffled),
    "NoisyHook": Habit(chance.NoisyHook),
    "HostRandom": Habit(chance.HostRandom, is_rare=True),
    # memory
    "BatchNorm": Habit(memory.BatchNorm, is_alone=True),
    "BatchNormOfAll": Habit(partial(memory.BatchNorm, None), is_alone=True),
    "Spectral": Habit(memory.Spectral, is_alone=True),
    "SpectralHook": Habit(memory.SpectralHook, is_alone=True),
    "WeightNorm": Habit(memory.WeightNorm),
    "WeightNormHook": Habit(memory.WeightNormHook),
    "Pruned": Habit(partial(memory.Pruned, bias=True)),
    "PrunedWithoutBias": Habit(partial(memory.Pruned, bias=False)),
    "Centred": Habit(memory.Centred, is_alone=True),
    "Reassigned": Habit(memory.Reassigned, is_alone=True),
    "Counting": Habit(memory.Counting, is_alone=True),
    "Tallied": Habit(memory.Tallied, is_alone=True),
    "Cached": Habit(memory.Cached),
    "Constant": Habit(memory.Constant),
    # hooks
    "WeightHook": Habit(hooked.WeightHook),
    "AccumulateHook": Habit(hooked.AccumulateHook),
    "ForwardHook": Habit(hooked.ForwardHook),
    "PreHook": Habit(hooked.PreHook),
    "BackwardHook": Habit(hooked.BackwardHook),
    "BackwardPreHook": Habit(hooked.BackwardPreHook),
    "ValueHook": Habit(hooked.ValueHook),
    # what autograd does
    "Cut": Habit(gradients.Cut),
    "CutBehind": Habit(gradients.CutBehind),
    "Stopped": Habit(gradients.Stopped),
    "Features": Habit(gradients.Features),
    "HalfFrozen": Habit(gradients.HalfFrozen),
    "Checkpointed": Habit(partial(gradients.Checkpointed, is_reentrant=False)),
    "CheckpointedReentrant": Habit(partial(gradients.Checkpointed, is_reentrant=True)),
    "ByHand": Habit(gradients.ByHand),
    "StraightThrough": Habit(gradients.StraightThrough, is_steep=True),
    "InnerGradient": Habit(gradients.InnerGradient),
    "Bounded": Habit(gradients.Bounded),
    "Cast": Habit(gradients.Cast),
    "Uncast": Habit(gradients.Uncast),
}

WORD_HABITS: dict[str, Habit] = {  # the first layer where the data are words
    "Embedding": Habit(lambda: nn.Embedding(WORDS, WIDTH)),
    "EmbeddingWithPadding": Habit(lambda: nn.Embedding(WORDS, WIDTH, padding_idx=0)),
    "EmbeddingOfNorm": Habit(lambda: nn.Embedding(WORDS, WIDTH, max_norm=1.0)),
}


@dataclass(frozen=True, slots=True, repr=False)
class Layer(Short):
    """A layer of a model.

    form      what it passes on, of FORMS
    same_as   the earlier layer whose module it is
    tied_to   the earlier layer whose weight its linear layer has
    """

    habit: str
    form: str = "tensor"
    same_as: int | None = None
    tied_to: int | None = None
    is_frozen: bool = False
    is_evaluating: bool = False


class Carried(nn.Module):
    """A layer that reads the sum of some values, and passes on another than a plain tensor."""

    def __init__(self, inner: nn.Module, reads: tuple[str, ...], form: str) -> None:
        super().__init__()
        self.inner, self._reads, self._wrap = inner, reads, FORMS[form].wrap

    def forward(self, *given: Any) -> Any:
        value = self._read(given)
        return self._wrap(self.inner(value), value)

    def _read(self, given: tuple[Any, ...]) -> Tensor:
        """Tuples come spread over the arguments, or whole where the layer before calls."""
        if len(given) == 1:
            return FORMS[self._reads[0]].read(given[0])
        read = []
        for form in self._reads:
            mine, given = given[: arity(form)], given[arity(form) :]
            read.append(FORMS[form].read(mine if len(mine) > 1 else mine[0]))
        return reduce(torch.add, read)


def built(
    made: Sequence[Layer], sources: Sequence[tuple[str, ...]], dtype: torch.dtype
) -> list[nn.Module]:
    """The modules of these layers, each of which reads values of these forms."""
    torch.manual_seed(0)
    cores: list[nn.Module] = []
    found: list[nn.Module] = []
    with _default(dtype):
        for layer, reads in zip(made, sources, strict=True):
            cores.append(_core(layer, cores))
            is_plain = layer.form == "tensor" and reads in (("tensor",), ("words",))
            found.append(cores[-1] if is_plain else Carried(cores[-1], reads, layer.form))
    return found


def _core(layer: Layer, before: Sequence[nn.Module]) -> nn.Module:
    if layer.same_as is not None:
        return before[layer.same_as]
    core = (HABITS | WORD_HABITS)[layer.habit].make()
    if layer.tied_to is not None:
        line_of(core).weight = line_of(before[layer.tied_to]).weight
    if layer.is_frozen:
        core.requires_grad_(False)
    return core.eval() if layer.is_evaluating else core


def line_of(module: nn.Module) -> nn.Linear:
    """The linear layer whose weight may be tied."""
    line = module if isinstance(module, nn.Linear) else module.line
    assert isinstance(line, nn.Linear)
    return line


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
