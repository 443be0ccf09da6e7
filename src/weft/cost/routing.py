"""Routing: the way to the experts and back, and what pairs and parts of a layer make of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft.cost.cost import PerStage, Shares
from weft.cost.setting import Setting, Stage


def routing(setting: Setting, stage: Stage) -> float:
    """Seconds of dispatch to the experts and combine, forward or backward.

    On one node a token goes to each of its experts; between nodes it goes once to each of their
    nodes, and on from there over the near links (arXiv 2412.19437, section 3.2.2).
    """
    spread, per_node = setting.layout.processors, setting.device.per_node
    model = setting.model
    if spread == 1:
        return 0.0
    groups, most = spread, model.top_k
    if spread > per_node:
        groups, most = math.ceil(spread / per_node), model.expert_nodes or most
    routed = [block.routed for block in stage if block.routed]
    if not routed:
        return 0.0
    share = min(most, model.top_k, groups) / model.top_k * (groups - 1) / groups
    link = setting.link(spread)
    return 2 * sum(link.latency + link.seconds(size * share) for size in routed)


def overlaps(
    setting: Setting, stages: Sequence[Stage], times: Mapping[str, PerStage]
) -> dict[str, float]:
    """Two actions that overlap hide the way to each other's experts, as far as it goes."""
    way = sum(routing(setting, stage) for stage in stages)
    if not way:
        return {}
    sums = {name: sum(column) for name, column in times.items()}
    seconds = {"F": sums["forward"], "I": sums["input_grad"]}
    seconds["B"] = sums["input_grad"] + sums["weight_grad"]
    ratios = {}
    for pair in ("BB", "BF", "FF", "FI", "II"):
        both = seconds[pair[0]] + seconds[pair[1]]
        ratios[pair] = max(both - 2 * way, 2 * way) / both
    return ratios


def shares(
    setting: Setting, stages: Sequence[Stage], times: Mapping[str, PerStage]
) -> dict[str, Shares]:
    """What of F and of I is the way to the experts and back, and what their products."""
    way = sum(routing(setting, stage) for stage in stages) / 2
    products = [product for stage in stages for block in stage for product in block.experts]
    expert = sum(
        setting.device.multiplying(product.flops, moved=0.0, count=product.count).seconds
        for product in products
    )
    found = {}
    for kind, name in (("F", "forward"), ("I", "input_grad")):
        whole = sum(times[name]) or 1.0
        moved, computed = way / whole, min(expert / whole, 1 - 2 * way / whole)
        found[kind] = (max(0.0, 1 - 2 * moved - computed), moved, computed, moved)
    return found
