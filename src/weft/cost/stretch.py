"""Stretch: the same cost where some stages take longer to compute."""

from __future__ import annotations

from dataclasses import replace

from weft.cost.cost import Cost, PerStage

COMPUTED = ("forward", "input_grad", "weight_grad", "recompute")


def stretched(cost: Cost, factors: PerStage) -> Cost:
    """All that stage i computes takes factors[i] times as long; what it keeps and sends stays."""

    def longer(seconds: PerStage) -> PerStage:
        return tuple(second * factor for second, factor in zip(seconds, factors, strict=True))

    times = {name: longer(getattr(cost.times, name)) for name in COMPUTED}
    whole = cost.times.backward
    return replace(
        cost,
        times=replace(cost.times, **times, backward=None if whole is None else longer(whole)),
    )
