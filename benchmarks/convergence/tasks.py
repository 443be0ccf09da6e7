"""What is learned: three small models as rows of layers, and the data of each.

    digits   a ResNeXt with grouped convolutions and BatchNorm, on 8 x 8 images of digits
    bert     an encoder that finds the characters that were hidden in a text
    gpt      a decoder that finds the next character

A microbatch is decided by seed and index alone, so that every method sees the same samples in the
same order, however many of them make an update. Knows no method and no optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.models.gpt import Embedding, Head, gpt
from weft.train.data import Batches, Tokens, own_text

LAYERS = 8  # of every model, in parts of about equal work but for the ends

CHANNELS, GROUPS, WIDENED = 32, 8, 64  # of the ResNeXt
TESTED = 360  # images that are not trained on

WIDTH, HEADS, CONTEXT = 48, 4, 32  # of the language models
MASKED = 8  # characters of a sequence
SPREAD = 0.1  # of the encoder's first embeddings
HELD_OUT = 0.1  # of the text, its end
SEQUENCES = 72  # that are evaluated
IGNORED = -100  # a target that does not count


class Sample(NamedTuple):
    """Inputs and what they should give."""

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Task:
    """A model to make, and what it is trained and tried on.

    constant  the loss of the best answer that ignores the input
    """

    layers: Callable[[], nn.Sequential]
    microbatch: Callable[[int, int], Sample]  # of a seed and an index
    held_out: Sample
    constant: float

    def model(self, seed: int) -> nn.Sequential:
        """With the same first weights for every method."""
        torch.manual_seed(seed)
        return self.layers()


def loss(scores: Tensor, targets: Tensor) -> Tensor:
    """The mean over what counts."""
    return functional.cross_entropy(scores.flatten(0, -2), targets.flatten(), ignore_index=IGNORED)


@torch.no_grad()
def tried(model: nn.Sequential, sample: Sample) -> tuple[float, float]:
    """Loss and accuracy of a sample."""
    model.eval()
    scores = model(sample.inputs)
    model.train()
    counts = sample.targets != IGNORED
    right = (scores.argmax(-1) == sample.targets)[counts]
    return float(loss(scores, sample.targets)), float(right.float().mean())


def entropy(numbers: Tokens) -> float:
    """The loss of an answer by frequency alone."""
    share = np.bincount(numbers) / len(numbers)
    return float(-(share[share > 0] * np.log(share[share > 0])).sum())


# digits


class Grouped(nn.Module):
    """A ResNeXt's block: narrow, convolve in groups, widen, and add what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *convolved(WIDENED, CHANNELS, 1),
            nn.ReLU(),
            *convolved(CHANNELS, CHANNELS, 3, groups=GROUPS),
            nn.ReLU(),
            *convolved(CHANNELS, WIDENED, 1),
        )

    def forward(self, value: Tensor) -> Tensor:
        return functional.relu(value + self.body(value))


def convolved(inner: int, outer: int, size: int, groups: int = 1) -> Iterator[nn.Module]:
    """A convolution that keeps the size, and its norm."""
    yield nn.Conv2d(inner, outer, size, padding=size // 2, groups=groups, bias=False)
    yield nn.BatchNorm2d(outer)


def resnext() -> nn.Sequential:
    stem = nn.Sequential(*convolved(1, WIDENED, 3), nn.ReLU(), nn.MaxPool2d(2))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDENED, 10))
    return nn.Sequential(stem, *(Grouped() for _ in range(LAYERS - 2)), head)


def digits(images: Tensor, labels: Tensor, *, rows: int) -> Task:
    """Passes over shuffled images; the last ones are held out."""
    scaled = images.float().reshape(-1, 1, 8, 8) / 8 - 1
    training, testing = slice(0, -TESTED), slice(-TESTED, None)
    each_pass = len(labels[training]) // rows

    def microbatch(seed: int, index: int) -> Sample:
        chosen = _shuffled(seed, index // each_pass, len(labels[training]))
        rows_of_it = chosen[index % each_pass * rows :][:rows]
        return Sample(scaled[rows_of_it], labels[rows_of_it])

    held_out = Sample(scaled[testing], labels[testing])
    return Task(resnext, microbatch, held_out, entropy(labels[training].numpy()))


@cache
def _shuffled(seed: int, turn: int, count: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed * 10_000 + turn))


def read_digits(file: Path | None) -> tuple[Tensor, Tensor]:
    """Images and labels, from a file or from scikit-learn, in an order that mixes the writers."""
    if file:
        with np.load(file) as found:
            images, labels = found["images"], found["labels"]
    else:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
    order = _shuffled(0, 0, len(labels))
    return torch.from_numpy(images)[order], torch.from_numpy(labels).long()[order]


def write_digits(file: Path) -> None:
    """The images of scikit-learn in a file, for where it is missing."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    np.savez_compressed(file, images=images.astype(np.uint8), labels=labels.astype(np.uint8))


# language


@dataclass(frozen=True)
class Part:
    """A part of the shipped text, with the vocabulary of the whole."""

    numbers: Tokens
    vocabulary: int
    name: str = "a part of Weft's own text"

    def tokens(self) -> Tokens:
        return self.numbers


def parts() -> tuple[Part, Part]:
    """What is trained on, and what is held out."""
    text = own_text()
    numbers = text.tokens()
    cut = int(len(numbers) * (1 - HELD_OUT))
    return Part(numbers[:cut], text.vocabulary), Part(numbers[cut:], text.vocabulary)


def decoder(*, rows: int) -> Task:
    """The next character of every position."""
    training, testing = parts()
    batches = Batches(training, context=CONTEXT)
    held_out = Batches(testing, context=CONTEXT).batch(SEQUENCES, seed=0, step=0)

    def layers() -> nn.Sequential:
        return gpt(
            training.vocabulary, layers=LAYERS - 2, hidden=WIDTH, heads=HEADS, context=CONTEXT
        )

    def microbatch(seed: int, index: int) -> Sample:
        return Sample(*batches.batch(rows, seed=seed, step=index))

    return Task(layers, microbatch, Sample(*held_out), entropy(training.numbers))


def encoder(*, rows: int) -> Task:
    """The hidden characters of a sequence, as many in each."""
    training, testing = parts()
    batches = Batches(training, context=CONTEXT)
    mask = training.vocabulary  # one sign more than the text has
    whole, _ = Batches(testing, context=CONTEXT).batch(SEQUENCES, seed=0, step=0)

    def microbatch(seed: int, index: int) -> Sample:
        tokens, _ = batches.batch(rows, seed=seed, step=index)
        return _masked(tokens, mask, seed * 1_000_003 + index)

    def layers() -> nn.Sequential:
        blocks = [_attending() for _ in range(LAYERS - 2)]
        return nn.Sequential(_embedding(mask + 1), *blocks, Head(WIDTH, mask + 1))

    return Task(layers, microbatch, _masked(whole, mask, 0), entropy(training.numbers))


def _embedding(vocabulary: int) -> nn.Module:
    """Positions start as waves: from zeros, an encoder of characters learns next to nothing."""
    made = Embedding(vocabulary, CONTEXT, WIDTH, 0.0)
    angles = torch.arange(CONTEXT)[:, None] * 0.01 ** (torch.arange(0, WIDTH, 2) / WIDTH)
    with torch.no_grad():
        made.position.copy_(SPREAD * torch.stack([angles.sin(), angles.cos()], -1).flatten(1))
    nn.init.normal_(made.token.weight, std=SPREAD)
    return made


def _attending() -> nn.Module:
    return nn.TransformerEncoderLayer(
        WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
    )


def _masked(tokens: Tensor, mask: int, seed: int) -> Sample:
    drawn = torch.Generator().manual_seed(seed)
    places = torch.rand(tokens.shape, generator=drawn).argsort(-1)[:, :MASKED]
    targets = torch.full_like(tokens, IGNORED).scatter(1, places, tokens.gather(1, places))
    return Sample(tokens.scatter(1, places, mask), targets)


# all of them

ROWS = {"digits": 16, "bert": 8, "gpt": 8}  # samples of a microbatch


@cache
def task(name: str, digits_file: Path | None) -> Task:
    match name:
        case "digits":
            return digits(*read_digits(digits_file), rows=ROWS[name])
        case "bert":
            return encoder(rows=ROWS[name])
        case "gpt":
            return decoder(rows=ROWS[name])
        case _:
            raise SystemExit(f"there is no task {name}, only {', '.join(ROWS)}")
