"""Small models that the runtime's tests train."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH = 8
VOCABULARY = 11

Data: TypeAlias = list[tuple[Any, Any]]
NamedParameters: TypeAlias = Iterable[tuple[str, nn.Parameter]]


# losses, optimizers, comparisons


def squared(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target) ** 2).mean()


def first_squared(output: tuple[Tensor, ...], target: Tensor) -> Tensor:
    return squared(output[0], target)


def likelihood(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output, target)


def adam(named: NamedParameters) -> torch.optim.Optimizer:
    return torch.optim.AdamW([parameter for _, parameter in named], lr=1e-2)


def plain_descent(named: NamedParameters) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for _, parameter in named], lr=0.1)


def is_same(one: Tensor | None, other: Tensor | None) -> bool:
    """Bit for bit, and there at all."""
    return one is not None and other is not None and torch.equal(one, other)


# data


def batches(size: int, steps: int, dtype: torch.dtype = torch.float32) -> Data:
    generator = torch.Generator().manual_seed(7)

    def draw() -> Tensor:
        return torch.randn(size, WIDTH, generator=generator, dtype=torch.float64).to(dtype)

    return [(draw(), draw()) for _ in range(steps)]


def words(size: int, steps: int) -> Data:
    generator = torch.Generator().manual_seed(7)

    def draw() -> Tensor:
        return torch.randint(VOCABULARY, (size,), generator=generator)

    return [(draw(), draw()) for _ in range(steps)]


# models


def layers(count: int, dtype: torch.dtype = torch.float32, *, seed: int = 0) -> nn.Sequential:
    """Linear layers with and without bias, norms, dropout: what a split must get right."""
    torch.manual_seed(seed)
    made = [
        nn.Sequential(
            nn.Linear(WIDTH, WIDTH, bias=index % 2 == 0),
            nn.LayerNorm(WIDTH),
            nn.Dropout(0.1),
            nn.ReLU(),
        )
        for index in range(count)
    ]
    return nn.Sequential(*made).to(dtype)


def linear(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(WIDTH, WIDTH) for _ in range(count)]


def quartered(count: int) -> list[nn.Module]:
    """Stages of four layers, all of which have weights: segments of theirs do, too."""

    def layer() -> nn.Module:
        return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH))

    torch.manual_seed(0)
    return [nn.Sequential(*(layer() for _ in range(4))) for _ in range(count)]


def tied(count: int) -> list[nn.Module]:
    """The last stage turns values into words with the table that the first one looks them up in."""
    torch.manual_seed(0)
    table, head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
    head.weight = table.weight
    middle = [nn.Linear(WIDTH, WIDTH) for _ in range(count)]
    middle[0] = nn.Sequential(table, middle[0])  # type: ignore[call-overload]
    middle[-1] = nn.Sequential(middle[-1], head)  # type: ignore[call-overload]
    return [*middle]


class Chosen(nn.Module):
    """Passes on the rows whose first value is not below the mean: how many, only the data say."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.line(value)
        return out[out[:, 0] >= out[:, 0].mean()]


def ragged(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [Chosen() for _ in range(count)]


def ragged_loss(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target.mean(0)) ** 2).sum()


class Forked(nn.Module):
    """Gives two values and reads the first of two."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, value: Tensor, _: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.line(value), self.other(value)


def forked(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [Forked() for _ in range(count)]


class Reminded(nn.Module):
    """Reads the words beside what was made of them, and passes both on."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.line = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor, ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if ids is None:
            return self.table(value), value
        return self.line(value) + self.table(ids), ids


def reminded(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [Reminded() for _ in range(count)]


class Model(NamedTuple):
    """Stages, data that fits them, and a loss."""

    stages: Callable[[int], list[nn.Module]]
    data: Callable[[int, int], Data]
    loss: Callable[[Any, Tensor], Tensor]


def _slices(count: int) -> list[nn.Module]:
    from weft.runtime import split

    return split(layers(count), stages=count)


class Norm(nn.Module):
    """A layer with a buffer that every forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.norm(self.line(value))
        return out


def normed(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [Norm() for _ in range(count)]


def broken(size: int, steps: int) -> Data:
    """The third batch is not a number."""
    made = batches(size, steps)
    made[2][0].fill_(float("nan"))
    return made


MODELS = {
    "layers": Model(_slices, batches, squared),
    "tied": Model(tied, words, likelihood),
    "normed": Model(normed, batches, squared),
    "broken": Model(_slices, broken, squared),
    "ragged": Model(ragged, batches, ragged_loss),
    "forked": Model(forked, batches, first_squared),
    "reminded": Model(reminded, words, lambda output, _: (output[0] ** 2).mean()),
}


class Sleep(nn.Module):
    """Takes a known time, forward and backward, and adds what it is given."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.shift = seconds, nn.Parameter(torch.zeros(WIDTH))

    def forward(self, value: Tensor) -> Tensor:
        if not value.is_meta and type(value) is Tensor:
            time.sleep(self.seconds)
        out: Tensor = _Slept.apply(value + self.shift, self.seconds)  # type: ignore[no-untyped-call]
        return out


class _Slept(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: Tensor, seconds: float) -> Tensor:
        context.seconds = seconds
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(context.seconds)
        return gradient, None


class KnownSegments(nn.Module):
    """Layers whose attention, dispatch, experts and combine take known times."""

    def __init__(self, seconds: Sequence[Sequence[float]]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList(Sleep(taken) for taken in layer) for layer in seconds
        )

    def segments(self) -> list[nn.Module]:
        return [part for layer in self.layers for part in layer.children()]

    def forward(self, value: Tensor) -> Tensor:
        for segment in self.segments():
            value = segment(value)
        return value


class Faulty(nn.Module):
    """Fails in its third forward."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.calls = nn.Linear(WIDTH, WIDTH), 0

    def forward(self, value: Tensor) -> Tensor:
        self.calls += not value.is_meta
        if self.calls == 3:
            raise ValueError("out of luck")
        out: Tensor = self.line(value)
        return out
