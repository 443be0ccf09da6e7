"""Chains: what each block of a model costs, so that any cut of it into stages has a cost at once.

    blocks     embedding | layer | layer | layer | layer | head
    layers     2, 2      [embedding layer layer] [layer layer head]

Seconds and bytes of a stage are the sums of its blocks'; what it keeps where it is recomputed is
what its first block reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.cost import (
    Cost,
    Memory,
    Network,
    PerStage,
    Times,
    sizes_of_parts,
    stretched,
)
from weft.cost.layout import even_split
from weft.cost.seconds import SECONDS
from weft.ir.program import Program

Layers: TypeAlias = tuple[int, ...]  # of each stage
Values: TypeAlias = NDArray[np.float64]

SUMMED = ("weights", "gradients", "optimizer", "saved")  # of a memory: what adds up


class StageSums(NamedTuple):
    """What each stage of a cut takes; `state` is weights and gradients."""

    forward: Values
    input_grad: Values
    weight_grad: Values
    recompute: Values
    update: Values
    reduce: Values
    state: Values
    optimizer: Values
    saved: Values
    inputs: Values


@dataclass(frozen=True)
class Chain:
    """Blocks that may be cut between any two of them.

    blocks    the cost of a program whose stages are the blocks, one by one
    has_ends  whether the first and the last are an embedding and a head, which are no layers
    begins    what of each block's sum of gradients is latency, which a stage has once
    """

    blocks: Cost
    has_ends: bool = True
    begins: PerStage = ()
    _links: dict[int, tuple[Values, Values]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def layers(self) -> int:
        return self.blocks.stages - 2 * self.has_ends

    @cached_property
    def seconds(self) -> Values:
        """Of each block, for one microbatch: forward and both gradients."""
        times = self.blocks.times
        whole = np.add(times.input_grad, times.weight_grad)
        return np.asarray(times.forward + whole)

    def bounds(self, layers: Sequence[int]) -> NDArray[np.int64]:
        """The first block of each stage, and the one after the last."""
        cuts = np.cumsum([0, *layers]) + int(self.has_ends)
        cuts[0], cuts[-1] = 0, self.blocks.stages
        return np.asarray(cuts, np.int64)

    def sums(self, layers: Layers) -> StageSums:
        """Seconds and bytes of the stages that have these layers."""
        firsts = self.bounds(layers)[:-1]
        columns = self._columns
        summed = np.add.reduceat(columns[:-1], firsts, axis=1)
        found = StageSums._make([*summed, columns[-1, firsts]])
        return found._replace(reduce=found.reduce - self._repeated(firsts))

    def _repeated(self, firsts: NDArray[np.int64]) -> Values | float:
        """What the sums of a stage's blocks have too much of latency."""
        if not self.begins:
            return 0.0
        begins = np.array(self.begins)
        return np.add.reduceat(begins, firsts) - np.maximum.reduceat(begins, firsts)

    @cached_property
    def _columns(self) -> Values:
        """What `StageSums` has, of each block."""
        times, memory = self.blocks.times, self.blocks.memory
        state = np.add(memory.weights, memory.gradients)
        seconds = [getattr(times, name) for name in SECONDS]
        return np.array([*seconds, state, memory.optimizer, memory.saved, memory.inputs])

    def messages(self, layers: Layers) -> Values:
        """Bytes between the stages that have these layers."""
        edges = self.blocks.network.sizes(self.blocks.stages - 1)
        return edges[self.bounds(layers)[1:-1] - 1]

    def links(self, devices: int) -> tuple[Values, Values]:
        """Latency and bandwidth from each device to each."""
        if devices not in self._links:
            network = self.blocks.network
            latency = np.full((devices, devices), network.default.latency)
            bandwidth = np.full((devices, devices), network.default.bandwidth)
            for ends, link in network.between.items():
                if max(ends) < devices:
                    latency[ends], bandwidth[ends] = link.latency, link.bandwidth
            self._links[devices] = latency, bandwidth
        return self._links[devices]

    def instant(self) -> Chain:
        """The same with messages between devices that take no time."""
        network = self.blocks.network
        return self._but(network=Network(message=network.message, host=network.host))

    def without_updates(self) -> Chain:
        """The same with sums of gradients and updates that take no time."""
        none = (0.0,) * self.blocks.stages
        gather = self.blocks.times.gather and none
        times = replace(self.blocks.times, update=none, reduce=none, gather=gather)
        return replace(self._but(times=times), begins=())

    def stretched(self, layers: Layers, factors: Sequence[float]) -> Chain:
        """The same where all that stage i computes takes factors[i] times as long."""
        each = np.repeat(factors, np.diff(self.bounds(layers)))
        return self._but(times=stretched(self.blocks, tuple(each.tolist())).times)

    def _but(self, **changes: Any) -> Chain:
        return replace(self, blocks=replace(self.blocks, **changes), _links={})

    def cost(self, program: Program, layers: Sequence[int]) -> Cost:
        """What a program costs whose stages have these layers."""
        bounds = self.bounds(layers)
        firsts, blocks = bounds[:-1], self.blocks
        message = blocks.network.sizes(blocks.stages - 1)[bounds[1:-1] - 1]
        return replace(
            blocks,
            times=replace(
                _times(blocks.times, firsts), reduce=tuple(self.sums(tuple(layers)).reduce.tolist())
            ),
            memory=_memory(blocks.memory, firsts),
            network=replace(blocks.network, message=tuple(message.tolist())),
            parts={kind: shares for kind, shares in blocks.parts.items() if _is_common(shares)},
            sizes=blocks.sizes or sizes_of_parts(program),
            provenance={
                name: tuple(marks[first] for first in firsts.tolist())
                for name, marks in blocks.provenance.items()
            },
        )


def even(chain: Chain, stages: int) -> Layers:
    """As many layers on each stage, or nearly."""
    return even_split(chain.layers, stages)


def _times(times: Times, firsts: NDArray[np.int64]) -> Times:
    names = times.__dataclass_fields__
    summed: dict[str, Any] = {name: _sums(getattr(times, name), firsts) for name in names}
    return Times(**summed)


def _memory(memory: Memory, firsts: NDArray[np.int64]) -> Memory:
    scratch = memory.scratch
    summed: dict[str, Any] = {name: _sums(getattr(memory, name), firsts) for name in SUMMED}
    return replace(
        memory,
        **summed,
        inputs=tuple(np.array(memory.inputs)[firsts].tolist()),
        scratch=scratch and tuple(np.maximum.reduceat(scratch, firsts).tolist()),
    )


def _sums(column: PerStage | None, firsts: NDArray[np.int64]) -> PerStage | None:
    return None if column is None else tuple(np.add.reduceat(column, firsts).tolist())


def _is_common(shares: object) -> bool:
    """Whether all stages have the same."""
    return isinstance(shares, tuple) and not isinstance(shares[0], tuple)
