"""Models as people write them, whole: what `weft.split` has to cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH = 8


class Block(nn.Module):
    """A residual block, with a shorter way of its own where the size changes."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample: nn.Module | None = None
        if stride != 1 or before != after:
            conv = nn.Conv2d(before, after, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)  # type: ignore[no-any-return]


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.layer1 = nn.Sequential(Block(4, 4), Block(4, 4))
        self.layer2 = nn.Sequential(Block(4, 6, 2), Block(6, 6))
        self.layer3 = nn.Sequential(Block(6, 8, 2), Block(8, 8))
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        x = functional.adaptive_avg_pool2d(x, 1)
        return self.fc(torch.flatten(x, 1))  # type: ignore[no-any-return]


class UNet(nn.Module):
    """Values of the way down are read on the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, 2, 1)])
        self.middle = nn.Conv2d(8, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.head = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for layer in self.down:
            x = functional.relu(layer(x))
            skips.append(x)
        x = self.up(self.middle(x) + skips[1])
        return self.head(torch.cat([x, skips[0]], 1))  # type: ignore[no-any-return]


def tower(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers)


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = tower(8, 8, 8, 8), tower(16, 8, 8, 8)
        self.head = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.head(torch.cat([self.left(a), self.right(b)], -1))  # type: ignore[no-any-return]


class Inception(nn.Module):
    """A stem, four branches, and a head that reads all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.one = nn.Sequential(nn.Conv2d(6, 12, 1), nn.ReLU(), nn.Conv2d(12, 12, 1))
        self.three = nn.Conv2d(6, 4, 3, padding=1)
        self.five = nn.Conv2d(6, 2, 5, padding=2)
        self.pool = nn.Conv2d(6, 30, 1)
        self.head = nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.stem(x))
        pooled = self.pool(functional.max_pool2d(x, 3, 1, 1))
        x = torch.cat([self.one(x), self.three(x), self.five(x), pooled], 1)
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


class Multimodal(nn.Module):
    """Images and words with a mask, which the fusion reads as well."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GELU(), nn.Conv2d(8, 8, 2, 2))
        self.words = nn.Embedding(20, 8)
        self.text = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.fusion = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, image: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        seen = self.image(image).flatten(2).transpose(1, 2)
        padding = mask == 0
        read = self.text(self.words(ids), src_key_padding_mask=padding)
        fused, _ = self.fusion(seen, read, read, key_padding_mask=padding)
        return self.head(fused.mean(1))  # type: ignore[no-any-return]


@dataclass
class Output:
    logits: Tensor
    states: tuple[Tensor, ...]


class Words(nn.Module):
    """A tied weight, functional dropout, a keyword, a value with many readers, a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.drop = nn.Dropout(0.25)  # called at both ends, in two stages
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("shift", torch.linspace(0, 1, WIDTH))

    def forward(self, ids: Tensor, *, mask: Tensor | None = None, depth: int = 4) -> Output:
        first = self.embed(ids) * self.scale + self.shift
        if mask is not None:
            first = first * mask.unsqueeze(-1)
        states = []
        value = self.drop(first)
        for layer in self.layers[:depth]:
            value = functional.dropout(torch.tanh(layer(value)), 0.5, self.training) + first
            states.append(value)
        rows = ids.shape[0]
        flat = self.drop(value.reshape(rows, -1, WIDTH))
        return Output(functional.linear(flat, self.embed.weight), tuple(states))


class Decides(nn.Module):
    """Its path depends on sizes: no modules can be followed here."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor, *, names: Any = None) -> dict[str, Tensor]:
        if x.dim() != 2 or x.shape[1] != WIDTH:
            raise ValueError("rows of numbers")
        with torch.no_grad():
            size = x.abs().mean()
        x = x / size
        for layer in self.layers:
            x = functional.dropout(functional.relu(layer(x)), 0.5, self.training) + x
        return {"out": self.norm(x)}


class Whole(NamedTuple):
    """A model and an example of its batch."""

    make: Callable[[], nn.Module]
    example: Callable[[], Any]

    def made(self) -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        return self.make(), self.example()


def _words() -> dict[str, Tensor]:
    mask = torch.tensor([[1.0, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]])
    return {"ids": torch.randint(11, (4, 3)), "mask": mask}


def _modes() -> dict[str, Tensor]:
    mask = torch.tensor([[1, 1, 1, 0, 0]] * 4)
    return {"image": torch.randn(4, 3, 8, 8), "ids": torch.randint(20, (4, 5)), "mask": mask}


MODELS = {
    "resnet": Whole(ResNet, lambda: torch.randn(4, 3, 8, 8)),
    "unet": Whole(UNet, lambda: torch.randn(4, 3, 8, 8)),
    "towers": Whole(TwoTowers, lambda: (torch.randn(4, 8), torch.randn(4, 16))),
    "inception": Whole(Inception, lambda: torch.randn(4, 3, 8, 8)),
    "multimodal": Whole(Multimodal, _modes),
    "words": Whole(Words, _words),
    "decides": Whole(Decides, lambda: torch.randn(4, WIDTH)),
}
