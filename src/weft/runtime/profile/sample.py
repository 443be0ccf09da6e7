"""Samples and efforts: what is measured, and for how long."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer

from weft.ir.graph import Graph
from weft.ir.kinds import Direction, Kind
from weft.runtime.batch import Data
from weft.runtime.compression import AskedCompression, Compression, bytes_in, compression_of
from weft.runtime.losses import LossFunction
from weft.runtime.precision import FULL, AskedPrecision, Precision, cast
from weft.runtime.profile.memory import size_of
from weft.runtime.ranks.carriers import Carrier
from weft.runtime.stage.calling import called
from weft.runtime.stage.cast import Cast
from weft.runtime.stage.values import Carries, Value, plain
from weft.runtime.weights.options import Reduction

MakeOptimizer: TypeAlias = Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer]
Watch: TypeAlias = Callable[[str, float], None]  # what is measured, and the share of it that is

SIZES = tuple(4096 * 4**power for power in range(7))  # 4 kB to 16 MB


@dataclass(frozen=True, slots=True)
class Sample:
    """One microbatch and its target, and what trains on them, as a pipeline is made with it."""

    batch: Data
    target: Data
    loss: LossFunction
    optimizer: MakeOptimizer | None = None
    clip: float | None = None
    precision: AskedPrecision = None
    compress: AskedCompression = None
    shard_optimizer: bool = False
    reduce: Reduction = "ordered"


@dataclass(frozen=True, slots=True)
class Effort:
    """How often everything is measured, after a warm-up, and through which transport.

    kinds   of action that are timed besides those of the program
    rounds  in which every action is timed, once for each microbatch in flight
    sizes   of messages, in bytes
    pings   of every size
    steps   of a pipeline: of the stages, which are updated, and of stages that only rest
    link    whether the link to the host is measured, over which activations are offloaded
    """

    kinds: frozenset[Kind] = frozenset(kind for kind in Kind if kind.is_compute)
    rounds: int = 20
    sizes: tuple[int, ...] = SIZES
    pings: int = 20
    steps: int = 20
    transport: Carrier = "auto"
    link: bool = True


THOROUGH = Effort()
BRIEF = Effort(kinds=frozenset(), rounds=6, sizes=SIZES[::3], pings=8, steps=3, link=False)


class StageValues(NamedTuple):
    """What every stage reads, and what it hands to other stages."""

    inputs: list[list[Value]]
    outputs: list[Value]

    @classmethod
    def through(
        cls,
        stages: Sequence[nn.Module],
        graph: Graph,
        batch: Value,
        carries: Carries,
        precision: Precision = FULL,
    ) -> StageValues:
        """What a microbatch is on its way through copies of the stages."""
        values = cls([], [])
        with torch.no_grad(), Cast.here(batch.leaves[0].device, precision).again():
            for index, stage in enumerate(stages):
                before = [
                    values.outputs[other].picked(carries.get((other, index)))
                    for other in graph.predecessors[index]
                ]
                values.inputs.append(before or [batch])
                if graph.successors[index]:
                    made = called(copy.deepcopy(stage), before or [batch])
                    values.outputs.append(Value.of(made, f"what stage {index} returns"))
                else:
                    values.outputs.append(Value((), plain(0)))
        return values._in(precision.compute)

    def _in(self, dtype: torch.dtype | None) -> StageValues:
        """The same, in the type that passes between stages."""

        def made(value: Value) -> Value:
            return value.with_leaves(cast(leaf, dtype) for leaf in value.leaves)

        return StageValues(
            [[*map(made, given)] for given in self.inputs], [*map(made, self.outputs)]
        )

    def messages(
        self, graph: Graph, carries: Carries, compress: AskedCompression = None
    ) -> tuple[float, ...]:
        """Bytes that cross each edge, the mean of both directions."""
        found, ways = compression_of(compress, graph), (Direction.ACTIVATION, Direction.GRADIENT)
        along = {edge: self.outputs[edge[0]].picked(carries.get(edge)) for edge in graph.edges}
        return tuple(
            sum(_travelling(value, found.get(edge), way) for way in ways) / len(ways)
            for edge, value in along.items()
        )


def _travelling(value: Value, compression: Compression | None, direction: Direction) -> float:
    """Bytes of a value in one direction."""
    dtype = None if compression is None else compression.dtype(direction)
    if dtype is None:
        return float(size_of(value.leaves))
    return float(sum(bytes_in(tuple(leaf.shape), leaf.dtype, dtype) for leaf in value.leaves))


def seconds(device: torch.device, call: Callable[[], object]) -> float:
    """How long a call takes; a GPU runs after its host, and is waited for."""
    _settle(device)
    began = time.perf_counter()
    call()
    _settle(device)
    return time.perf_counter() - began


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
