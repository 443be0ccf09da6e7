"""Layers as people write them: shared weights, views, writing in place, data that choose a path."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.runtime.habits.size import WIDTH, WORDS


class Lined(nn.Module):
    """One linear layer, `line`: what most habits do something unusual with."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(WIDTH, WIDTH)


# weights


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        return value + self.down(functional.gelu(self.up(value)))


class UsedTwice(Lined):
    def forward(self, value: Tensor) -> Tensor:
        return self.line(torch.tanh(self.line(value)))


class WeightRead(Lined):
    """Calls the layer, and multiplies by its weight without it."""

    def forward(self, value: Tensor) -> Tensor:
        return self.line(functional.linear(value, self.line.weight.t()))


class Keyword(Lined):
    """Calls a layer with its argument's name."""

    def forward(self, value: Tensor) -> Tensor:
        return self.line(input=value)


class CalledForward(Lined):
    """Calls `forward`, past all hooks."""

    def forward(self, value: Tensor) -> Tensor:
        return self.line.forward(value)


class OwnLinear(nn.Linear):
    """A linear layer with a forward of its own."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear(input, self.weight) * 2 - self.bias


class RawWeights(nn.Module):
    """Parameters without layers: a matrix, a scalar, a list of them."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH)
        self.gain = nn.Parameter(torch.tensor(0.5))
        self.shifts = nn.ParameterList([torch.zeros(WIDTH), torch.ones(WIDTH)])

    def forward(self, value: Tensor) -> Tensor:
        shift = self.shifts[0] + self.shifts[1]
        return self.gain * torch.einsum("nlw,wv->nlv", value, self.matrix) + shift


class Batched(nn.Module):
    """A weight of three dimensions, expanded over the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, WIDTH, WIDTH) / WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        return torch.bmm(value, self.weight.expand(len(value), -1, -1))


class Clamped(Lined):
    """Bounds its weight before it uses it."""

    def forward(self, value: Tensor) -> Tensor:
        with torch.no_grad():
            self.line.weight.data.clamp_(-0.3, 0.3)
        return self.line(value)


class Vectors(Lined):
    """Calls its layer on vectors, one row after the other."""

    def forward(self, value: Tensor) -> Tensor:
        rows = [self.line(row) for row in value.flatten(0, 1)]
        return torch.stack(rows).view_as(value)


class Mapped(Lined):
    def forward(self, value: Tensor) -> Tensor:
        return torch.vmap(self.line)(value)


class Hidden(nn.Module):
    """Its layers stand in a plain list, where torch does not find them."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.3)]
        self.line = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        for part in self.parts:
            value = part(value)
        return self.line(value)


# layers of torch


class Convolved(nn.Module):
    """Leaves its output transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(2, WIDTH), nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, value: Tensor) -> Tensor:
        return self.conv(self.norm(value.transpose(1, 2))).transpose(1, 2)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(WIDTH, WIDTH, num_layers=2, dropout=0.3, batch_first=True)

    def forward(self, value: Tensor) -> Tensor:
        return self.cell(value)[0]


class Attention(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = nn.MultiheadAttention(WIDTH, 2, dropout=dropout, batch_first=True)

    def forward(self, value: Tensor) -> Tensor:
        return value + self.heads(value, value, value, need_weights=False)[0]


class Bucketed(nn.Module):
    """Turns values into whole numbers and looks them up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        return value + self.table((value.mean(-1) * 5).long() % WORDS)


# views and writing in place


class Added(nn.Module):
    """Adds to its input, in place."""

    def forward(self, value: Tensor) -> Tensor:
        return value.add_(0.5)


class Zeroed(Lined):
    """Writes into a part of its input."""

    def forward(self, value: Tensor) -> Tensor:
        value[:, 0] = 0.25
        return self.line(value)


class Overwritten(Lined):
    """Writes into what its layer gave."""

    def forward(self, value: Tensor) -> Tensor:
        out = self.line(value)
        out *= 2
        out[..., :1].mul_(3)
        return torch.relu_(out)


class Chunked(nn.Module):
    """Gates one half of a wide layer by the other, both views."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        left, right = self.wide(value).chunk(2, -1)
        return left * torch.sigmoid(right)


class Strided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        return self.wide(value)[..., ::2]


class Expanded(Lined):
    def forward(self, value: Tensor) -> Tensor:
        return self.line(value).mean(1, keepdim=True).expand_as(value)


class Rotated(nn.Module):
    """Goes through complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.linspace(0, 1, WIDTH))

    def forward(self, value: Tensor) -> Tensor:
        turn = torch.polar(torch.ones_like(self.phase), self.phase)
        return torch.view_as_real(value * turn).sum(-1)


# data that choose a path


class Experts(nn.Module):
    """Rows go to one of three layers; those that get none are not called."""

    def __init__(self) -> None:
        super().__init__()
        self.choice = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])

    def forward(self, value: Tensor) -> Tensor:
        share = self.choice(value).softmax(-1)
        best, chosen = share.max(-1, keepdim=True)
        out = torch.zeros_like(value)
        for index, expert in enumerate(self.experts):
            where = (chosen == index).squeeze(-1).nonzero(as_tuple=True)
            if len(where[0]):
                out = out.index_put(where, expert(value[where]) * best[where])
        return value + out


class Sometimes(Lined):
    """Uses its layer for some microbatches only."""

    def forward(self, value: Tensor) -> Tensor:
        return self.line(value) if float(value.detach().mean()) > 0 else value * 0.5


class Never(Lined):
    """Has a layer that it does not use."""

    def forward(self, value: Tensor) -> Tensor:
        return value * 0.5


class Filtered(Lined):
    """Passes on as many rows as the data say, and at least one."""

    def forward(self, value: Tensor) -> Tensor:
        rank = value.detach().mean((1, 2))
        return self.line(value[rank >= rank.mean()])
