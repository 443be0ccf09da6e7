"""Derived costs: a model on a device, without running either.

    seconds of products   FLOPs / (peak x what products of that size reach), or the bytes they
                          move / bandwidth where that takes longer
    seconds between them  bytes moved / bandwidth
    seconds on the wire   latency + bytes / bandwidth

Launches, imbalance, stragglers and contention are left out, so that a derived time is a bound
that good runs come near to; what was measured instead says so by its provenance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from weft.cost.blocks import Block, Product
from weft.cost.cost import (
    Cost,
    Link,
    Memory,
    Network,
    PerStage,
    Shares,
    Times,
    sizes_of_parts,
)
from weft.cost.device import Device
from weft.cost.layout import Layout, Storage, blocks_by_stage
from weft.cost.provenance import Estimate, Marks, Provenance, total
from weft.cost.transformer import Transformer
from weft.errors import InputError
from weft.ir.graph import Backward, Graph
from weft.ir.placement import Placement
from weft.ir.program import Program

Stage: TypeAlias = tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivation:
    """What a cost is derived from, whatever the program."""

    model: Transformer
    device: Device
    layout: Layout = field(default_factory=Layout)
    storage: Storage = field(default_factory=Storage)

    def cost(self, program: Program) -> Cost:
        """What the program costs."""
        return derive(program, self.model, self.device, self.layout, self.storage)


def derive(
    program: Program | tuple[Graph, Placement],
    model: Transformer,
    device: Device,
    layout: Layout | None = None,
    storage: Storage | None = None,
) -> Cost:
    """The cost of a model whose layers are split over the stages of a chain of equal devices."""
    graph, placement = _parts(program)
    setting = _Setting(model, device, layout or Layout(), storage or Storage())
    stages = blocks_by_stage(model, setting.layout, len(graph))
    estimates = {
        name: [total(parts(setting, stage)) for stage in stages] for name, parts in _PARTS.items()
    }
    _silence(graph, estimates)
    return Cost(
        times=Times(**{name: _seconds(column) for name, column in estimates.items()}),
        memory=_memory(setting, graph, stages),
        network=_network(setting, graph, placement),
        pairs=_pairs(setting, stages, estimates),
        parts=_shares(setting, stages, estimates),
        sizes=sizes_of_parts(program) if isinstance(program, Program) else (),
        provenance=_marks(estimates),
    )


@dataclass(frozen=True, slots=True)
class _Setting:
    """What everything here is derived from."""

    model: Transformer
    device: Device
    layout: Layout
    storage: Storage

    @property
    def copies(self) -> int:
        """Devices that hold the same weights, but for the experts."""
        return self.layout.experts * self.layout.replicas

    def link(self, group: int) -> Link:
        """The slowest link within a group of devices that stand together."""
        return self.device.near if group <= self.device.per_node else self.device.far


def _parts(program: Program | tuple[Graph, Placement]) -> tuple[Graph, Placement]:
    graph, placement = (
        (program.graph, program.placement) if isinstance(program, Program) else program
    )
    if not graph.is_chain:
        raise InputError("layers are split over a chain of stages; this graph branches")
    if len(graph) != placement.stages:
        raise InputError(f"{len(graph)} stages in the graph, {placement.stages} in the placement")
    return graph, placement


# seconds


def _forward(setting: _Setting, stage: Stage) -> list[Estimate]:
    return _through(setting, stage) + _between(setting.device, stage)


def _input_grad(setting: _Setting, stage: Stage) -> list[Estimate]:
    """Attention computes its scores again: 5 products for F's 2; a norm moves 3 values for 2."""
    return _through(setting, stage) + _between(setting.device, stage, scores=2.5, moves=1.5)


def _between(
    device: Device, stage: Stage, *, scores: float = 1.0, moves: float = 1.0
) -> list[Estimate]:
    """What stands between the products with weights, as a multiple of what F does."""
    attending = [device.attending(scores * _flops(block.scores)) for block in stage]
    return attending + [device.moving(moves * block.moved) for block in stage]


def _weight_grad(setting: _Setting, stage: Stage) -> list[Estimate]:
    """Products that read two activations, and add to a gradient that is read and written."""
    found = []
    for product in _products(stage):
        read = product.count * product.rows * (product.inner + product.columns)
        moved = read * setting.model.value_bytes + 2 * product.weights * setting.storage.gradients
        found.append(_multiplying(setting, product, moved))
    return found


def _through(setting: _Setting, stage: Stage) -> list[Estimate]:
    """Products with the weights and the way to the experts: the same forward and backward."""
    found = []
    for product in _products(stage):
        values = product.rows * (product.inner + product.columns) * product.count + product.weights
        found.append(_multiplying(setting, product, values * setting.model.value_bytes))
    return [*found, Estimate(_routing(setting, stage), Provenance.DERIVED)]


def _multiplying(setting: _Setting, product: Product, moved: float) -> Estimate:
    return setting.device.multiplying(product.flops, moved=moved, count=product.count)


def _routing(setting: _Setting, stage: Stage) -> float:
    """Dispatch to the experts and combine.

    On one node a token goes to each of its experts; between nodes it goes once to each of their
    nodes, and on from there over the near links (arXiv 2412.19437, section 3.2.2).
    """
    spread, per_node, model = setting.layout.experts, setting.device.per_node, setting.model
    if spread == 1:
        return 0.0
    groups, most = spread, model.top_k
    if spread > per_node:
        groups, most = math.ceil(spread / per_node), model.expert_nodes or most
    share = min(most, model.top_k, groups) / model.top_k * (groups - 1) / groups
    link = setting.link(spread)
    ways = [link.latency + link.seconds(block.routed * share) for block in stage if block.routed]
    return 2 * sum(ways)


def _update(setting: _Setting, stage: Stage) -> list[Estimate]:
    """The optimizer reads gradients, reads and writes its state, writes weights."""
    storage = setting.storage
    each = storage.gradients + 2 * storage.optimizer + storage.weights
    return [setting.device.moving(each * _sharded(setting, stage))]


def _reduce(setting: _Setting, stage: Stage) -> list[Estimate]:
    """Gradients are scattered as they are summed, and the new weights gathered."""
    each = setting.storage.gradients + setting.storage.weights
    seconds = 0.0
    for count, copies in (
        (_shared(stage), setting.copies),
        (_experts(stage), setting.layout.replicas),
    ):
        link = setting.link(setting.copies)
        if copies > 1 and count:
            seconds += link.latency + link.seconds(each * count * (copies - 1) / copies)
    return [Estimate(seconds, Provenance.DERIVED)]


_PARTS: dict[str, Callable[[_Setting, Stage], list[Estimate]]] = {
    "forward": _forward,
    "input_grad": _input_grad,
    "weight_grad": _weight_grad,
    "recompute": _forward,
    "update": _update,
    "reduce": _reduce,
}


def _silence(graph: Graph, estimates: dict[str, list[Estimate]]) -> None:
    """What a frozen stage does not do takes no time."""
    for index, stage in enumerate(graph.stages):
        names = () if stage.backward is Backward.FULL else ("weight_grad", "update", "reduce")
        if stage.backward is Backward.NONE:
            names = ("input_grad", *names)
        for name in names:
            estimates[name][index] = Estimate(0.0, Provenance.DERIVED)


def _seconds(column: Sequence[Estimate]) -> PerStage:
    return tuple(estimate.seconds for estimate in column)


def _marks(estimates: dict[str, list[Estimate]]) -> Marks:
    """Links are never timed here, so whatever crosses them is derived."""
    marks = {
        name: tuple(estimate.provenance for estimate in column)
        for name, column in estimates.items()
    }
    links = (Provenance.DERIVED,) * len(marks["forward"])
    return marks | {"network": links, "host": links}


# bytes


def _memory(setting: _Setting, graph: Graph, stages: Sequence[Stage]) -> Memory:
    storage = setting.storage
    learns = [stage.backward is Backward.FULL for stage in graph.stages]
    held = [_shared(stage) + _experts(stage) for stage in stages]
    learned = [count * is_full for count, is_full in zip(held, learns, strict=True)]
    sharded = [
        _sharded(setting, stage) * is_full for stage, is_full in zip(stages, learns, strict=True)
    ]
    return Memory(
        weights=tuple(storage.weights * count for count in held),
        gradients=tuple(storage.gradients * count for count in learned),
        optimizer=tuple(storage.optimizer * count for count in sharded),
        saved=tuple(sum(block.saved for block in stage) for stage in stages),
        inputs=tuple(stage[0].inputs if stage else 0.0 for stage in stages),
        capacity=setting.device.memory,
    )


def _network(setting: _Setting, graph: Graph, placement: Placement) -> Network:
    """Devices that share a stage stand side by side, so a node holds that many fewer stages."""
    device = setting.device
    together = max(1, device.per_node // setting.layout.experts)
    message = (float(setting.model.message_bytes),) * len(graph.edges)
    if placement.devices <= together:
        return Network(message=message, default=device.near, host=device.host)
    near = {
        (one, other): device.near
        for one in range(placement.devices)
        for other in range(placement.devices)
        if one != other and one // together == other // together
    }
    return Network(message=message, default=device.far, between=near, host=device.host)


def _pairs(
    setting: _Setting, stages: Sequence[Stage], estimates: dict[str, list[Estimate]]
) -> dict[str, float]:
    """Two actions that overlap hide the way to each other's experts, as far as it goes."""
    routing = sum(_routing(setting, stage) for stage in stages)
    if not routing:
        return {}
    sums = {name: sum(_seconds(column)) for name, column in estimates.items()}
    seconds = {"F": sums["forward"], "I": sums["input_grad"]}
    seconds["B"] = sums["input_grad"] + sums["weight_grad"]
    ratios = {}
    for pair in ("BB", "BF", "FF", "FI", "II"):
        both = seconds[pair[0]] + seconds[pair[1]]
        ratios[pair] = max(both - 2 * routing, 2 * routing) / both
    return ratios


def _shares(
    setting: _Setting, stages: Sequence[Stage], estimates: dict[str, list[Estimate]]
) -> dict[str, Shares]:
    """What of F and of I is the way to the experts and back, and what their products."""
    way = sum(_routing(setting, stage) for stage in stages) / 2
    products = [product for stage in stages for block in stage for product in block.experts]
    expert = sum(_multiplying(setting, product, 0.0).seconds for product in products)
    shares = {}
    for kind, name in (("F", "forward"), ("I", "input_grad")):
        whole = sum(_seconds(estimates[name])) or 1.0
        moved, computed = way / whole, min(expert / whole, 1 - 2 * way / whole)
        shares[kind] = (max(0.0, 1 - 2 * moved - computed), moved, computed, moved)
    return shares


# counts


def _products(stage: Stage) -> list[Product]:
    return [product for block in stage for product in (*block.linears, *block.experts)]


def _flops(products: Sequence[Product]) -> float:
    return sum(product.flops for product in products)


def _shared(stage: Stage) -> float:
    return sum(block.shared_parameters for block in stage)


def _experts(stage: Stage) -> float:
    return sum(block.expert_parameters for block in stage)


def _sharded(setting: _Setting, stage: Stage) -> float:
    """Parameters whose optimizer state one device keeps."""
    return _shared(stage) / setting.copies + _experts(stage) / setting.layout.replicas
