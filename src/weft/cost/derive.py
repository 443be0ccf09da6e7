"""Derived costs: a model on a device, without running either.

Launches, imbalance, stragglers and contention are left out, so that a derived time is a bound
that good runs come near to; what was measured instead says so by its provenance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from weft.cost.cost import Cost, Memory, Network, PerStage, Times, sizes_of_parts
from weft.cost.device import Device
from weft.cost.layout import Layout, Storage, blocks_by_stage
from weft.cost.provenance import Estimate, Marks, Provenance, total
from weft.cost.routing import overlaps, shares
from weft.cost.seconds import OF_BLOCKS, OF_STAGES
from weft.cost.setting import (
    Setting,
    Stage,
    expert_parameters,
    shared_parameters,
    updated_parameters,
)
from weft.cost.transformer import Transformer
from weft.errors import InputError
from weft.ir.graph import Backward, Graph
from weft.ir.placement import Placement
from weft.ir.program import Program


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
    setting = Setting(
        model=model,
        device=device,
        layout=layout or Layout(),
        storage=storage or Storage(),
        devices=placement.devices,
        pipes=len(placement.pipes),
    )
    stages = blocks_by_stage(model, setting.layout, len(graph))
    estimates = _estimated(setting, stages)
    _silence(graph, estimates)
    times = {name: _seconds(column) for name, column in estimates.items()}
    return Cost(
        times=Times(**times),
        memory=_memory(setting, graph, stages),
        network=_network(setting, graph, placement),
        pairs=overlaps(setting, stages, times),
        parts=shares(setting, stages, times),
        sizes=sizes_of_parts(program) if isinstance(program, Program) else (),
        provenance=_marks(estimates),
    )


def _parts(program: Program | tuple[Graph, Placement]) -> tuple[Graph, Placement]:
    graph, placement = (
        (program.graph, program.placement) if isinstance(program, Program) else program
    )
    if not graph.is_chain:
        raise InputError("layers are split over a chain of stages; this graph branches")
    if len(graph) != placement.stages:
        raise InputError(f"{len(graph)} stages in the graph, {placement.stages} in the placement")
    return graph, placement


def _estimated(setting: Setting, stages: Sequence[Stage]) -> dict[str, list[Estimate]]:
    """The seconds of each stage, by name; blocks of a kind are alike, and priced once."""
    kinds = {id(block): (block,) for stage in stages for block in stage}
    found = {}
    for name, parts in OF_BLOCKS.items():
        each = {key: parts(setting, alone) for key, alone in kinds.items()}
        found[name] = [total([*chain(*(each[id(block)] for block in stage))]) for stage in stages]
    return found | {
        name: [total(parts(setting, stage)) for stage in stages]
        for name, parts in OF_STAGES.items()
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


def _memory(setting: Setting, graph: Graph, stages: Sequence[Stage]) -> Memory:
    storage = setting.storage
    learns = [stage.backward is Backward.FULL for stage in graph.stages]
    held = [shared_parameters(stage) + expert_parameters(stage) for stage in stages]
    learned = [count * is_full for count, is_full in zip(held, learns, strict=True)]
    updated = [
        updated_parameters(setting, stage) * is_full
        for stage, is_full in zip(stages, learns, strict=True)
    ]
    return Memory(
        weights=tuple(storage.weights * count for count in held),
        gradients=tuple(storage.gradients * count for count in learned),
        optimizer=tuple(storage.optimizer * count for count in updated),
        saved=tuple(_saved(setting, stage) for stage in stages),
        inputs=tuple(stage[0].inputs if stage else 0.0 for stage in stages),
        capacity=setting.device.memory,
    )


def _saved(setting: Setting, stage: Stage) -> float:
    """What a forward keeps; with selective recompute nothing that is cheap to compute again."""
    dropped = sum(block.cheap for block in stage) if setting.storage.is_selective else 0.0
    return sum(block.saved for block in stage) - dropped


def _network(setting: Setting, graph: Graph, placement: Placement) -> Network:
    """Processors that share a stage stand side by side, so a node holds that many fewer stages.

    Each of a group sends its part of the tokens.
    """
    device, layout = setting.device, setting.layout
    together = max(1, device.per_node // layout.processors)
    message = (setting.model.message_bytes / layout.tensor,) * len(graph.edges)
    if placement.devices <= together:
        return Network(message=message, default=device.near, host=device.host)
    near = {
        (one, other): device.near
        for one in range(placement.devices)
        for other in range(placement.devices)
        if one != other and one // together == other // together
    }
    return Network(message=message, default=device.far, between=near, host=device.host)
