"""Seconds: what each kind of action takes, of a stage and one microbatch.

seconds of products   FLOPs / (peak x what products of that size reach), or the bytes they
                      move / bandwidth where that takes longer
seconds between them  bytes moved / bandwidth
seconds on the wire   latency + bytes / bandwidth
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from weft.cost.block import Product
from weft.cost.provenance import Estimate, Provenance
from weft.cost.replicas import summing
from weft.cost.routing import routing
from weft.cost.setting import (
    Setting,
    Stage,
    expert_parameters,
    products,
    shared_parameters,
    updated_parameters,
)
from weft.cost.tensor import gathering


def _forward(setting: Setting, stage: Stage) -> list[Estimate]:
    return _through(setting, stage) + _between(setting, stage)


def _input_grad(setting: Setting, stage: Stage) -> list[Estimate]:
    """Attention computes its scores again: 5 products for F's 2; a norm moves 3 values for 2."""
    again = [block.again for block in stage if setting.storage.is_selective]
    return [
        *_through(setting, stage),
        *_between(setting, stage, scores=2.5, moves=1.5),
        *(setting.device.moving(size) for size in again),
    ]


def _between(
    setting: Setting, stage: Stage, *, scores: float = 1.0, moves: float = 1.0
) -> list[Estimate]:
    """What stands between the products with weights, as a multiple of what F does."""
    device = setting.device
    flops = [sum(product.flops for product in block.scores) for block in stage]
    attending = [device.attending(scores * one) for one in flops]
    return attending + [device.moving(moves * block.moved) for block in stage]


def _weight_grad(setting: Setting, stage: Stage) -> list[Estimate]:
    """Products that read two activations, and add to a gradient that is read and written."""
    found = []
    for product in products(stage):
        read = product.count * product.rows * (product.inner + product.columns)
        moved = read * setting.model.value_bytes + 2 * product.weights * setting.storage.gradients
        found.append(_multiplying(setting, product, moved))
    return found


def _through(setting: Setting, stage: Stage) -> list[Estimate]:
    """Products with the weights, and what goes to experts and to the processors of a group: the
    same forward and backward."""
    found = []
    for product in products(stage):
        values = product.rows * (product.inner + product.columns) * product.count + product.weights
        found.append(_multiplying(setting, product, values * setting.model.value_bytes))
    exchanged = routing(setting, stage) + gathering(setting, stage)
    return [*found, Estimate(exchanged, Provenance.DERIVED)]


def _multiplying(setting: Setting, product: Product, moved: float) -> Estimate:
    return setting.device.multiplying(product.flops, moved=moved, count=product.count)


def _update(setting: Setting, stage: Stage) -> list[Estimate]:
    """The optimizer reads gradients, reads and writes its state, writes weights."""
    storage = setting.storage
    each = storage.gradients + 2 * storage.optimizer + storage.weights
    return [setting.device.moving(each * updated_parameters(setting, stage))]


def _reduce(setting: Setting, stage: Stage) -> list[Estimate]:
    """Gradients are scattered as they are summed, and new weights gathered.

    Where each copy updates all of them, it is the summed gradients that are gathered.
    """
    layout, storage = setting.layout, setting.storage
    each = storage.gradients + (storage.weights if layout.is_sharded else storage.gradients)
    seconds = summing(setting, each * shared_parameters(stage), among=layout.experts)
    seconds += summing(setting, each * expert_parameters(stage), among=1)
    return [Estimate(seconds, Provenance.DERIVED)]


Pricing: TypeAlias = Callable[[Setting, Stage], list[Estimate]]

OF_BLOCKS: dict[str, Pricing] = {  # the sums of what their blocks take
    "forward": _forward,
    "input_grad": _input_grad,
    "weight_grad": _weight_grad,
    "recompute": _forward,
}
OF_STAGES: dict[str, Pricing] = {"update": _update, "reduce": _reduce}
SECONDS = OF_BLOCKS | OF_STAGES
