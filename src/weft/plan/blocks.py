"""Blocks: chains of a model on a device, or of stages that were measured.

derived    every block priced by what the device can do
measured   every stage that was timed, spread evenly over its layers
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.cost import Cost, Derivation, PerStage, Times, derive
from weft.cost.layout import blocks_by_stage
from weft.cost.routing import overlaps
from weft.cost.seconds import SECONDS
from weft.cost.setting import Setting
from weft.errors import InputError
from weft.ir.graph import Graph
from weft.ir.placement import Placement
from weft.plan.chain import SUMMED, Chain, Values


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
            **{name: shared(getattr(memory, name)) for name in SUMMED},
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
