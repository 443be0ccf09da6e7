"""Training: what decides the losses of a job beside its program, where its data is, what is saved.

Names, defaults and bounds are said here; `weft train`, its files and Python read them here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from weft.errors import InputError
from weft.lower.offload import AMOUNTS
from weft.request.values import (
    COUNT,
    FILE,
    SWITCH,
    TEXT,
    Amount,
    Bundle,
    NameOrFraction,
    OneOf,
    Whole,
    given,
)

ACCELERATORS = ("cpu", "cuda", "auto")
PRECISIONS = ("bf16", "fp16", "autocast")
FORMATS = ("bf16", "fp16", "fp8")
REDUCTIONS = ("ordered", "library")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(Bundle):
    """How a model is trained, and how large it is.

    model            a preset, whose sizes a small GPT or mixture of experts gets, or a config.json
                     of Hugging Face
    microbatch_size  sequences
    learning_rate    at its peak
    precision        in which types stages compute; None: in those of the weights
    compress         in what values and gradients travel between devices; None: as they are
    experts          whether stages of expert layers are cut into attention, dispatch, experts and
                     combine also where no two actions are a pair
    offload          how much of what forwards keep goes to the host until its backward
    shard_optimizer  whether copies of a stage share its update and the state of its optimizer
    reduce           in whose order gradients of copies are summed
    switch_after     synchronous steps before an asynchronous program begins
    predict          whether forwards use the weights as they will be, were updates all alike
    temper           steps in which a stage's learning rate grows to the whole one
    shuffle          whether every sequence comes once in an epoch, in an order drawn by the seed;
                     else sequences come from anywhere
    accelerator      what ranks compute on; auto is GPUs where there are enough
    share_gpus       whether several ranks may have one GPU
    """

    steps: int = given(COUNT, 50)
    seed: int = given(Whole(least=0, most=2**63 - 1), 0)
    microbatch_size: int = given(COUNT, 4)
    learning_rate: float = given(Amount(most=1, excluded=0), 3e-3)
    dropout: float = given(Amount(most=1, excluded=1), 0.0)
    model: str | None = given(TEXT)
    layers: int = given(COUNT, 8)
    hidden: int = given(COUNT, 64)
    heads: int = given(COUNT, 4)
    context: int = given(COUNT, 64)
    precision: str | None = given(OneOf(PRECISIONS))
    compress: str | None = given(OneOf(FORMATS))
    experts: bool = given(SWITCH, False)
    offload: str | float = given(NameOrFraction(AMOUNTS), "none")
    shard_optimizer: bool = given(SWITCH, False)
    reduce: str = given(OneOf(REDUCTIONS), "ordered")
    switch_after: int = given(Whole(least=0), 0)
    predict: bool = given(SWITCH, False)
    temper: int | None = given(COUNT)
    shuffle: bool = given(SWITCH, False)
    accelerator: str = given(OneOf(ACCELERATORS), "cpu")
    share_gpus: bool = given(SWITCH, False)


@dataclass(frozen=True, slots=True)
class Source(Bundle):
    """Where the data is; None is Weft's own text."""

    data: Path | None = given(FILE)
    token_type: str | None = given(TEXT)
    vocabulary: int | None = given(COUNT)
    column: str | None = given(TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving(Bundle):
    """When a run saves itself, where it ends early, and whether it goes on from a save.

    save_every  steps between two saves; None: saved only where it ends early
    keep        how many saves there are at most; None: all of them
    stop_after  the step after which it ends early, as if interrupted
    resume      whether it goes on from the newest save of its folder, if there is one
    reshape     whether it may go on by another program, or on another accelerator
    """

    save_every: int | None = given(COUNT)
    keep: int | None = given(COUNT)
    stop_after: int | None = given(COUNT)
    resume: bool = given(SWITCH, False)
    reshape: bool = given(SWITCH, False)

    def __post_init__(self) -> None:
        Bundle.__post_init__(self)
        if self.reshape and not self.resume:
            raise InputError("--reshape is for a run that goes on from a save; add --resume")
        if self.keep is not None and self.save_every is None and not self.resume:
            raise InputError("--keep is for the saves of --save-every; add that, or leave it out")
