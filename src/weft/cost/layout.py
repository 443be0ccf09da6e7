"""Layout and storage: how a model is spread over devices beyond its stages, and kept there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.cost.block import Block
from weft.cost.blocks import blocks
from weft.cost.checks import check_count, check_flag, check_number
from weft.cost.mapping import as_mapping, keyword_arguments
from weft.cost.transformer import Transformer
from weft.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What stands for one device of the pipeline.

    experts     groups of processors that share a stage: each holds its part of the experts, all of
                the rest, and feeds its own microbatches
    replicas    copies of all that, whose gradients are summed
    layers      layers of each stage; left out, they are split evenly
    tensor      processors of a group: each holds its part of every matrix and of every
                microbatch's tokens (tensor and sequence parallelism); experts are whole
    is_sharded  whether copies share the state of the optimizer (ZeRO-1), or each has all of it
    """

    experts: int = 1
    replicas: int = 1
    layers: tuple[int, ...] = ()
    tensor: int = 1
    is_sharded: bool = True

    def __post_init__(self) -> None:
        for name in ("experts", "replicas", "tensor"):
            check_count(getattr(self, name), name, least=1)
        for stage, count in enumerate(self.layers):
            check_count(count, f"layers of stage {stage}")
        check_flag(self.is_sharded, "sharded")

    @property
    def processors(self) -> int:
        """Processors that stand for one device of the pipeline."""
        return self.tensor * self.experts

    @property
    def copies(self) -> int:
        """Groups that hold the same weights, but for the experts, and feed microbatches."""
        return self.experts * self.replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Bytes per parameter; by default bf16 weights, fp32 gradients, and Adam's fp32 three.

    is_selective  whether the backward computes outputs of norms and activation functions again,
                  so that the forward keeps none of them
    """

    weights: float = 2.0
    gradients: float = 4.0
    optimizer: float = 12.0
    is_selective: bool = False

    def __post_init__(self) -> None:
        for name in ("weights", "gradients", "optimizer"):
            check_number(getattr(self, name), name)
        check_flag(self.is_selective, "selective")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> Storage:
        """The storage that keys and values describe; InputError names the key that is wrong."""
        return cls(**keyword_arguments(cls, mapping, "storage"))

    def to_mapping(self) -> dict[str, object]:
        """What `from_mapping` reads."""
        return as_mapping(self)


def even_split(layers: int, stages: int) -> tuple[int, ...]:
    """As even as can be; the ends, which hold embedding and head too, are the last to get more.

    22 layers on 8 stages: 2 3 3 3 3 3 3 2, as in Zero Bubble (arXiv 2401.10241).
    """
    if layers < stages:
        raise InputError(
            f"{layers} layers do not fill {stages} stages; take fewer devices or stages on each"
        )
    each, rest = divmod(layers, stages)
    first = (stages - rest) // 2
    return tuple(each + (first <= stage < first + rest) for stage in range(stages))


def blocks_by_stage(model: Transformer, layout: Layout, stages: int) -> list[tuple[Block, ...]]:
    """The blocks of each stage: embedding with the first, head with the last."""
    counts = layout.layers or even_split(model.layers, stages)
    if len(counts) != stages:
        raise InputError(f"layers: {len(counts)} counts for {stages} stages; give one for each")
    if sum(counts) != model.layers:
        raise InputError(f"layers: {sum(counts)} in all, the model has {model.layers}")
    first, *layers, last = blocks(model, spread=layout.experts, tensor=layout.tensor)
    found: list[tuple[Block, ...]] = []
    for count in counts:
        found.append(tuple(layers[:count]))
        del layers[:count]
    found[0] = (first, *found[0])
    found[-1] = (*found[-1], last)
    return found
