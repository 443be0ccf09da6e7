"""A setting: what everything is derived from, and the links that groups of processors meet over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from weft.cost.block import Block, Product
from weft.cost.cost import Link
from weft.cost.device import Device
from weft.cost.layout import Layout, Storage
from weft.cost.transformer import Transformer

Stage: TypeAlias = tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A model on the devices of a pipeline, how it is spread over them and what is kept of it.

    Processors of a group stand side by side, then groups that share experts, then devices of the
    pipeline, then replicas. `pipes` are copies of the stages on the same devices.
    """

    model: Transformer
    device: Device
    layout: Layout
    storage: Storage
    devices: int = 1
    pipes: int = 1

    def link(self, group: int) -> Link:
        """The slowest link within a group of processors that stand together."""
        return self.device.near if group <= self.device.per_node else self.device.far


def products(stage: Stage) -> list[Product]:
    """All products with weights."""
    return [product for block in stage for product in (*block.linears, *block.experts)]


def shared_parameters(stage: Stage) -> float:
    """Parameters that every group of a stage holds."""
    return sum(block.shared_parameters for block in stage)


def expert_parameters(stage: Stage) -> float:
    """Parameters of the experts that one processor holds."""
    return sum(block.expert_parameters for block in stage)


def updated_parameters(setting: Setting, stage: Stage) -> float:
    """Parameters whose optimizer state one processor keeps, and which it updates."""
    shared, experts = shared_parameters(stage), expert_parameters(stage)
    if not setting.layout.is_sharded:
        return shared + experts
    return shared / setting.layout.copies + experts / setting.layout.replicas
