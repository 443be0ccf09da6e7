"""Room: cuts that need less memory than the seed, whose stages take equally long.

Embedding and head have many weights, and early stages hold the most microbatches: where the seed
does not fit, a layer more on an emptier device or a later stage may cost less time than relief.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.plan.chain import Layers, Values
from weft.plan.partition import moved
from weft.plan.trial import Ease, Trier, kinds_of_recompute

MOVES = 8  # of single layers
SOURCES = 2  # stages that a layer is taken from by trial


def roomier(trier: Trier, layers: Layers, ease: Ease) -> Layers:
    """The cut that moving layers off the fullest stages leads to, until it fits or none helps."""
    held = trier.held(layers, ease)
    for _ in range(MOVES):
        if held.max() <= trier.capacity:
            break
        others = ((one, trier.held(one, ease)) for one in _moved(trier, layers, held))
        found = next((one for one in others if one[1].max() < held.max()), None)
        if found is None:
            break
        layers, held = found
    return layers


def _moved(trier: Trier, layers: Layers, held: Values) -> Iterator[Layers]:
    """Cuts with a layer of the fullest device on a later stage there, or on the emptiest device.

    The first of these leave each device as much work as it had.
    """
    placement = trier.ready(trier.lengths[0]).program.placement
    sources, others = (
        sorted({stage for _, stage in placement.held[device]}, key=lambda stage: layers[stage])
        for device in (int(np.argmax(held)), int(np.argmin(held)))
    )
    for target in (max(sources), others[0]):
        for source in sources[-SOURCES:]:
            if source != target:
                yield from moved(trier.chain(), layers, source, target)


def roomier_ways(trier: Trier, layers: Layers) -> Iterator[tuple[Layers, Ease]]:
    """Other cuts with which a candidate fits, without recomputed stages if there is one."""
    for is_selective in kinds_of_recompute(trier):
        ease = Ease(is_selective)
        other = roomier(trier, layers, ease)
        if trier.held(other, ease).max() <= trier.capacity:
            yield other, ease
        elif trier.bench.question.choices.recompute == "auto":
            yield from _recomputing(trier, layers, ease)


def _recomputing(trier: Trier, layers: Layers, ease: Ease) -> Iterator[tuple[Layers, Ease]]:
    """A cut that fits only with recomputed stages, where the one that is known does not at all."""
    if trier.fitting(layers, ease) is not None:
        return
    every = frozenset(range(len(layers)))
    other = roomier(trier, layers, Ease(ease.is_selective, every))
    found = trier.fitting(other, ease)
    if found is not None:
        yield other, found
