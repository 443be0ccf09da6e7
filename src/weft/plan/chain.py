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
    Derivation,
    Memory,
    Network,
    PerStage,
    Times,
    derive,
    sizes_of_parts,
    stretched,
)
from weft.cost.layout import blocks_by_stage, even_split
from weft.cost.routing import overlaps
from weft.cost.seconds import SECONDS
from weft.cost.setting import Setting
from weft.errors import InputError
from weft.ir.graph import Graph
from weft.ir.placement import Placement
from weft.ir.program import Program

Layers: TypeAlias = tuple[int, ...]  # of each stage
Values: TypeAlias = NDArray[np.float64]

_SUMMED = ("weights", "gradients", "optimizer", "saved")


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


def derived(setting: Derivation, devices: int, *, pipes: int = 1) -> Chain:
    """The chain of a model on a pipeline of that many devices, with as many copies on them.

    Layers of a kind are alike, so that only as many are priced as devices need.
    """
    model = setting.model
    dense = model.dense_layers if model.experts else model.layers
    counts = (dense, model.layers - dense)
    few = [min(count, devices) for count in counts]
    firsts = [1 + min(index, few[0] - 1) for index in range(counts[0])]
    others = [1 + few[0] + min(index, few[1] - 1) for index in range(counts[1])]
    block = np.array([0, *firsts, *others, sum(few) + 1])
    smaller = replace(model, layers=sum(few), dense_layers=few[0] if model.experts else 0)
    layout = replace(setting.layout, layers=(0, *(1,) * sum(few), 0))
    placed = _placed(sum(few) + 2, devices, pipes)
    cost = derive(placed, smaller, setting.device, layout, setting.storage)
    each = _indexed(cost, block, np.ones(len(block)))
    pairs = _pairs(setting, each, devices) if cost.pairs else {}
    begins: PerStage = ()
    if any(each.times.reduce):
        instant = _instant_sums(replace(setting, model=smaller, layout=layout), devices, pipes)
        begins = tuple(np.subtract(cost.times.reduce, instant)[block].tolist())
    return Chain(replace(each, pairs=pairs), begins=begins)


def _instant_sums(given: Derivation, devices: int, pipes: int) -> list[float]:
    """What sums of gradients would take over links without latency."""
    near, far = (replace(link, latency=0.0) for link in (given.device.near, given.device.far))
    device = replace(given.device, near=near, far=far)
    setting = _setting(replace(given, device=device), devices, pipes)
    stages = blocks_by_stage(given.model, given.layout, len(given.layout.layers))
    return [sum(one.seconds for one in SECONDS["reduce"](setting, stage)) for stage in stages]


def _setting(given: Derivation, devices: int, pipes: int) -> Setting:
    return Setting(
        model=given.model,
        device=given.device,
        layout=given.layout,
        storage=given.storage,
        devices=devices,
        pipes=pipes,
    )


def _pairs(given: Derivation, each: Cost, devices: int) -> dict[str, float]:
    """What pairs save in the whole model."""
    layers = given.model.layers
    whole = replace(given, layout=replace(given.layout, layers=(0, *(1,) * layers, 0)))
    stages = blocks_by_stage(given.model, whole.layout, layers + 2)
    times = {name: getattr(each.times, name) for name in SECONDS}
    return overlaps(_setting(whole, devices, 1), stages, times)


def _placed(blocks: int, devices: int, pipes: int) -> tuple[Graph, Placement]:
    """Blocks in a row on devices in a row, whatever is where."""
    held = tuple(block * devices // blocks for block in range(blocks))
    return Graph.chain(blocks), Placement((held,) * pipes)


def measured(cost: Cost, layers: Sequence[int] = ()) -> Chain:
    """The chain of stages that were measured, each spread evenly over its layers.

    Without layers a stage is one block. An end without layers is an embedding or a head alone;
    then both ends are blocks of their own, of which the other takes no time.
    """
    counts = tuple(layers) or (1,) * cost.stages
    if len(counts) != cost.stages or min(counts[1:-1], default=1) < 1:
        raise InputError(
            f"layers: {len(counts)} counts for the {cost.stages} stages that were measured; each"
            " but the first and the last has a layer"
        )
    has_ends = 0 in (counts[0], counts[-1])
    stage = np.repeat(np.arange(cost.stages), counts)
    share = 1 / np.array(counts)[stage]
    if has_ends:
        stage = np.concatenate([[0], stage, [cost.stages - 1]])
        ends = [float(counts[0] == 0)], [float(counts[-1] == 0)]
        share = np.concatenate([ends[0], share, ends[1]])
    return Chain(_indexed(cost, stage, share), has_ends=has_ends)


def even(chain: Chain, stages: int) -> Layers:
    """As many layers on each stage, or nearly."""
    return even_split(chain.layers, stages)


def _times(times: Times, firsts: NDArray[np.int64]) -> Times:
    names = times.__dataclass_fields__
    summed: dict[str, Any] = {name: _sums(getattr(times, name), firsts) for name in names}
    return Times(**summed)


def _memory(memory: Memory, firsts: NDArray[np.int64]) -> Memory:
    scratch = memory.scratch
    summed: dict[str, Any] = {name: _sums(getattr(memory, name), firsts) for name in _SUMMED}
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


def _indexed(cost: Cost, stage: NDArray[np.int64], share: Values) -> Cost:
    """The cost of blocks, each with its share of a stage; all of them read what a stage reads."""

    def shared(column: PerStage | None) -> Any:
        return None if column is None else tuple((np.array(column)[stage] * share).tolist())

    def whole(column: PerStage | None) -> Any:
        return None if column is None else tuple(np.array(column)[stage].tolist())

    times, memory = cost.times, cost.memory
    names = times.__dataclass_fields__
    edges = cost.network.sizes(cost.stages - 1)
    inside = np.minimum(stage[:-1], max(len(edges) - 1, 0))
    message = edges[inside] if len(edges) else np.zeros(len(inside))
    return replace(
        cost,
        times=Times(**{name: shared(getattr(times, name)) for name in names}),
        memory=replace(
            memory,
            **{name: shared(getattr(memory, name)) for name in _SUMMED},
            inputs=whole(memory.inputs),
            scratch=whole(memory.scratch),
        ),
        network=replace(cost.network, message=tuple(message.tolist())),
        parts={},
        provenance={
            name: tuple(marks[one] for one in stage.tolist())
            for name, marks in cost.provenance.items()
        },
    )
